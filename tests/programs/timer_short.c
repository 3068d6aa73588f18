// A timer whose signals are faster than single steps of a handler; the program still makes progress, also while it
// waits for the signal, and gets the sender of each.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <unistd.h>

static volatile int calls, foreign;
static volatile unsigned long work;

static void on_alarm(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    calls++;
    foreign += info->si_code != SI_KERNEL;
    for (int i = 0; i < 300; i++) work++;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_alarm, .sa_flags = SA_SIGINFO};
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    volatile unsigned long sum = 0;
    for (unsigned long i = 1; i <= 1000; i++) sum += i;
    int interrupted = pause() == -1 && errno == EINTR;
    setitimer(ITIMER_REAL, &never, NULL);
    printf("sum %lu interrupted %d called %d foreign %d\n", sum, interrupted, calls > 0, foreign);
    return 0;
}
