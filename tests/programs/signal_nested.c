// A handler that is interrupted by another signal, twice over, and one that blocks the signal it gets meanwhile.
#include "start.h"

static volatile int depth, deepest, blocked;

static void raise_self(int number) { CALL(kill, CALL(getpid, 0, 0, 0, 0), number, 0, 0); }

static void on_user(int number) {
    depth++;
    if (depth > deepest) deepest = depth;
    if (number == SIGUSR1) raise_self(SIGUSR2);
    if (number == SIGUSR2) raise_self(SIGURG);
    depth--;
}

static void on_window(int number) {
    if (blocked++ == 0) raise_self(number);  // pending until this handler returns
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    on_signal(SIGUSR1, on_user, 0);
    on_signal(SIGUSR2, on_user, 0);
    on_signal(SIGURG, on_user, 0);
    on_signal(SIGWINCH, on_window, 0);
    raise_self(SIGUSR1);
    raise_self(SIGWINCH);
    say_number("deepest", deepest);
    say_number("blocked", blocked);
    return 0;
}
