// Functions that a log of branches can follow: recursion, a call in a signal handler that interrupts the same
// function, and a function that is never called.
#include "start.h"

#define NOT_INLINED __attribute__((noipa))

static long work(long n);

NOT_INLINED static long leaf(long n) {
    OPAQUE(n);
    return n * 3 + 1;
}

static volatile long sum;

NOT_INLINED static void handler(int number) {
    sum += work(number % 4);
}

NOT_INLINED static long work(long n) {
    long found = 0;
    for (long i = 0; i < n; i++)
        if (i % 3) found += leaf(i);
    if (n == 20) CALL(kill, CALL(getpid, 0, 0, 0, 0), SIGUSR1, 0, 0);
    return found;
}

NOT_INLINED static long pong(long n);
NOT_INLINED static long ping(long n) {
    return n == 0 ? 0 : pong(n - 1) + 1;
}
NOT_INLINED static long pong(long n) {
    return n == 0 ? 0 : ping(n - 1) + leaf(n);
}

NOT_INLINED __attribute__((used)) static void never(void) {
    say("never\n");
}

int main(int argc, char **argv, char **envp) {
    (void)argv, (void)envp;
    on_signal(SIGUSR1, handler, 0);
    for (long i = 0; i < 5; i++) sum += work(5 * i);
    for (long i = 0; i < 4; i++) sum += ping(4 * i);
    if (argc > 9) never();
    say_number("sum", sum);
    return 0;
}
