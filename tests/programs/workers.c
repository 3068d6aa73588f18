// Threads that work until a line of input arrives, and check that nothing else changes their state: results,
// flags, blocked signals. Others start threads and processes all the time; a timer's signals come in between.
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t stop, alarms;
static int wrong;
static volatile int threads, children, calculations;

static void on_alarm(int number) { alarms += number == SIGALRM; }

static long count(volatile int *counter) { return __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED); }

__attribute__((noinline)) static uint64_t odd(uint64_t x) { return 3 * x + 1; }
__attribute__((noinline)) static uint64_t even(uint64_t x) { return x >> 1; }

// 111 steps from 27 to 1, the highest of them 9232.
__attribute__((noinline)) static int is_right(void) {
    uint64_t (*volatile next[2])(uint64_t) = {even, odd};
    uint64_t x = 27, highest = 0;
    int steps = 0;
    char from[64], to[64];
    memset(from, 7, sizeof from);
    __asm__ volatile("rep movsb" : : "S"(from), "D"(to), "c"(sizeof to) : "memory");
    for (; x != 1; steps++) {
        x = next[x & 1](x);
        if (x > highest) highest = x;
    }
    unsigned long flags;
    __asm__ volatile("pushf; pop %0" : "=r"(flags));
    return steps == 111 && highest == 9232 && !(flags & 0x100) && !memcmp(from, to, sizeof to);
}

static void *calculate(void *unused) {
    while (!stop) {
        if (!is_right()) count(&wrong);
        count(&calculations);
    }
    return unused;
}

static int blocks(int signal) {
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    return sigismember(&set, signal);
}

static void *block(void *unused) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTRAP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    while (!stop) {
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        if (!blocks(SIGTRAP) || !blocks(SIGUSR2)) count(&wrong);
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
        if (!blocks(SIGTRAP) || blocks(SIGUSR2)) count(&wrong);
    }
    return unused;
}

static void *work_once(void *unused) {
    if (!is_right()) count(&wrong);
    return unused;
}

static void *start(void *unused) {
    while (!stop) {
        pthread_t thread;
        int status = 0;
        pthread_create(&thread, NULL, work_once, NULL);
        pthread_join(thread, NULL);
        count(&threads);
        pid_t child = fork();
        if (child == 0) _exit(is_right() ? 5 : 6);
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 5) count(&wrong);
        count(&children);
    }
    return unused;
}

int main(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 100000}, {0, 100000}}, never = {{0, 0}, {0, 0}};
    void *(*const work[4])(void *) = {calculate, calculate, block, start};
    pthread_t workers[4];
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 4; i++) pthread_create(&workers[i], NULL, work[i], NULL);
    puts("running");
    fflush(stdout);
    char byte;
    long got = read(0, &byte, 1);
    while (!threads || !children || !calculations || !alarms) usleep(1000);
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(workers[i], NULL);
    setitimer(ITIMER_REAL, &never, NULL);
    printf("input %ld wrong %d\n", got, wrong);
    puts("all worked");
    return 3;
}
