/* threads_many THREADS: starts so many threads, 50 at a time, and waits for them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static int sum;

static void *add_one(void *unused)
{
	__atomic_fetch_add(&sum, 1, __ATOMIC_RELAXED);
	return unused;
}

int main(int count, char **words)
{
	int left = atoi(words[1]);

	(void)count;
	while (left) {
		pthread_t started[50];
		int threads = 0;

		for (; left && threads < 50; threads++, left--)
			if (pthread_create(&started[threads], 0, add_one, 0))
				return 1;
		while (threads)
			pthread_join(started[--threads], 0);
	}
	printf("sum %d\n", sum);
	return 5;
}
