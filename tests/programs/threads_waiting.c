/* threads_waiting THREADS ROUNDS: threads wait for a condition while the first one works. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int ready, go;

static void *wait_for_go(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&lock);
	ready++;
	pthread_cond_broadcast(&changed);
	while (!go)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return 0;
}

int main(int count, char **words)
{
	int threads = atoi(words[1]);
	long rounds = atol(words[2]);
	pthread_t started[100];
	volatile long sum = 0;

	(void)count;
	for (int i = 0; i < threads; i++)
		pthread_create(&started[i], 0, wait_for_go, 0);
	pthread_mutex_lock(&lock);
	while (ready < threads)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	for (long i = 0; i < rounds; i++)
		sum += i;
	pthread_mutex_lock(&lock);
	go = 1;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	for (int i = 0; i < threads; i++)
		pthread_join(started[i], 0);
	printf("sum %ld\n", sum);
	return 3;
}
