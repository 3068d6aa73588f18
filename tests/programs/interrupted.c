// System calls that a signal interrupts: one gives EINTR, one is restarted until there is something to read.
#include <sys/time.h>
#include <time.h>

#include "start.h"

static int ends[2];
static volatile int alarms;

// Sets the next alarm itself, so that one before the system call is not the last.
static void ask(void) {
    struct itimerval once = {{0, 0}, {0, 20000}};
    CALL(setitimer, ITIMER_REAL, &once, 0, 0);
}

static void on_alarm(int number) {
    (void)number;
    ask();
}

static void on_alarm_writing(int number) {
    (void)number;
    if (++alarms == 3) CALL(write, ends[1], "x", 1, 0);
    else if (alarms < 3) ask();
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    struct timespec long_time = {100, 0}, left;
    char byte = 0;
    CALL(pipe2, ends, 0, 0, 0);
    on_signal(SIGALRM, on_alarm, 0);
    ask();
    say_number("nanosleep", CALL(nanosleep, &long_time, &left, 0, 0));
    on_signal(SIGALRM, on_alarm_writing, SA_RESTART);
    ask();
    say_number("read", CALL(read, ends[0], &byte, 1, 0));
    say_number("alarms", alarms);
    return byte != 'x';
}
