/* The process ends while threads begin and end. */
#include <pthread.h>
#include <unistd.h>

static void *end_at_once(void *argument) { return argument; }

int main(void)
{
    for (int number = 0; number < 100; number++) {
        pthread_t thread;
        pthread_create(&thread, 0, end_at_once, 0);
        pthread_detach(thread);
    }
    usleep(300);
    _exit(3);
}
