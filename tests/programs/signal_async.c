// Asynchronous signals: one sent to itself, three from a timer at arbitrary instructions of a loop.
#include <sys/time.h>

#include "start.h"

static volatile int sent, ticks;

static void on_user(int number) { sent += number; }
static void on_alarm(int number) { ticks += number == SIGALRM; }

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    on_signal(SIGUSR1, on_user, 0);
    on_signal(SIGALRM, on_alarm, 0);
    CALL(kill, CALL(getpid, 0, 0, 0, 0), SIGUSR1, 0, 0);
    say_number("sent", sent);
    unsigned long x = 1;
    for (int i = 1; i <= 3; i++) {
        // Once each time: a period that is shorter than a slowed-down handler would leave no time for the loop.
        // Late enough to come in the loop and not in the system call, also where the program waits for its CPU.
        struct itimerval once = {{0, 0}, {0, 20000}};
        CALL(setitimer, ITIMER_REAL, &once, 0, 0);
        while (ticks < i) x = x & 1 ? 3 * x + 1 : x / 2 + (x == 1);
    }
    OPAQUE(x);
    say_number("ticks", ticks);
    return 0;
}
