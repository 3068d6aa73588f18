// Sends SIGHUP to its parent, and ends when it gets a SIGHUP itself.
#include "start.h"

static void on_hangup(int number) {
    (void)number;
    say("hung up\n");
    leave(3);
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    on_signal(SIGHUP, on_hangup, 0);
    CALL(kill, CALL(getppid, 0, 0, 0, 0), SIGHUP, 0, 0);
    for (;;) CALL(pause, 0, 0, 0, 0);
}
