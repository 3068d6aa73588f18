// Its second thread writes to where nothing is, while the first waits for it.
#include <pthread.h>

static void *fail(void *there) {
    *(volatile int *)there = 1;
    return there;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, fail, (void *)0xdead0010ul);
    pthread_join(thread, 0);
    return 0;
}
