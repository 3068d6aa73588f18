// Four threads that take turns at a mutex and wait for each other at a condition.
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, TIMES = 25 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int total, done;

static void *work(void *number) {
    for (int i = 0; i < TIMES; i++) {
        pthread_mutex_lock(&lock);
        total += (int)(long)number;
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_lock(&lock);
    done++;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    return number;
}

int main(void) {
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    pthread_mutex_lock(&lock);
    while (done < THREADS) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    long sum = 0;
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    printf("total %d sum %ld\n", total, sum);
    return 0;
}
