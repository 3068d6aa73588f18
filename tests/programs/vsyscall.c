// Calls into the vsyscall page, which holds no code that can be read or run.
#include "start.h"

static void on_segv(int number) {
    (void)number;
    say("no vsyscall\n");
    leave(77);
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    on_signal(SIGSEGV, on_segv, 0);
    long (*volatile time)(long *) = (long (*)(long *))0xffffffffff600400;
    long (*volatile get_cpu)(unsigned *, unsigned *, void *) =
        (long (*)(unsigned *, unsigned *, void *))0xffffffffff600800;
    long now = time(0), then = 0;
    unsigned cpu = ~0u;
    say(now > 1000000000 && time(&then) >= now && then >= now ? "time\n" : "no time\n");
    say(get_cpu(&cpu, 0, 0) == 0 && cpu != ~0u ? "cpu\n" : "no cpu\n");
    return 0;
}
