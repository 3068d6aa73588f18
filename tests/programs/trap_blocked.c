// SIGTRAP while it is blocked: the set of blocked signals says so, in handlers too, and one that is sent waits.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile int traps, value, inside;

static int blocks_trap(void) {
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    return sigismember(&set, SIGTRAP);
}

static void on_trap(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    traps++;
    value = info->si_value.sival_int;
}

static void on_other(int number) {
    (void)number;
    inside = blocks_trap();
}

int main(void) {
    struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO}, other = {.sa_handler = on_other};
    sigset_t set, old;
    sigaction(SIGTRAP, &trap, NULL);
    sigaction(SIGUSR1, &other, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGTRAP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    int first = blocks_trap();
    raise(SIGUSR1);
    int second = blocks_trap();
    pthread_sigmask(SIG_SETMASK, &set, &old);
    int third = sigismember(&old, SIGTRAP);
    sigqueue(getpid(), SIGTRAP, (union sigval){.sival_int = 7});
    int early = traps;
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    printf("blocked %d%d%d inside %d early %d late %d value %d\n", first, second, third, inside, early, traps, value);
    return blocks_trap();
}
