// SIGTRAP is ignored, in threads that compute, sleep, wait for a signal and wait for input; after a line of input it is
// sent to the process and to a thread. No thread is affected.
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static volatile int ended, woken;
static volatile uint64_t wrong, rounds;

static void *compute(void *unused) {
    while (!ended) {
        uint64_t a = 1, b = 2, c = 3, d = 4, e = 5;
        for (uint64_t i = 0; i < 100; i++) {
            // RCX and R11 are what SYSCALL destroys.
            __asm__ volatile("mov %0, %%rcx; mov %1, %%r11; add %%r11, %0; add %%rcx, %2; xor %%r11, %3; sub %%rcx, %4"
                             : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e)::"rcx", "r11");
        }
        wrong += !(a == 201 && b == 2 && c == 10003 && d == 4 && e == 5 - 10000ull);
        rounds++;
    }
    return unused;
}

static void *sleep_long(void *result) {
    struct timespec time = {3600, 0};
    *(int *)result = nanosleep(&time, &time) < 0 && time.tv_sec > 1000;
    return 0;
}

static void *wait_for_signal(void *result) {
    sigset_t none;
    sigemptyset(&none);
    *(int *)result = sigsuspend(&none) < 0 && woken == 1;
    return 0;
}

static void on_usr1(int number) { woken += number == SIGUSR1; }
static void on_usr2(int number) { (void)number; }

int main(void) {
    pthread_t threads[3];
    int slept = 0, waited = 0;
    sigset_t usr1;
    signal(SIGTRAP, SIG_IGN);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_usr1}, 0);
    sigaction(SIGUSR2, &(struct sigaction){.sa_handler = on_usr2}, 0);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, 0);
    pthread_create(&threads[0], 0, compute, 0);
    pthread_create(&threads[1], 0, sleep_long, &slept);
    pthread_create(&threads[2], 0, wait_for_signal, &waited);
    puts("running");
    fflush(stdout);
    char byte;
    long got = read(0, &byte, 1);
    struct sigaction now;
    sigaction(SIGTRAP, 0, &now);
    kill(getpid(), SIGTRAP);
    pthread_kill(threads[0], SIGTRAP);
    pthread_kill(threads[1], SIGUSR2);
    pthread_kill(threads[2], SIGUSR1);
    struct timespec moment = {0, 1000000};
    while (!rounds) nanosleep(&moment, 0);
    ended = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("input %ld, ignored %d, slept %d, waited %d, wrong %lu\n", got, now.sa_handler == SIG_IGN, slept,
           waited, wrong);
    return 0;
}
