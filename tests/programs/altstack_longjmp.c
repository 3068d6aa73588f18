// Handlers on an alternate stack that leave by a long jump: their frames, and the calls in them, never return.
#include "start.h"

static void *place[5];
static char stack[16384] __attribute__((aligned(16)));
static volatile int landed, on_stack;

__attribute__((noinline)) static void out_of(int levels) {
    if (levels) {
        out_of(levels - 1);
        landed = -100;
    }
    __builtin_longjmp(place, 1);
}

static void on_user(int number) {
    char here;
    on_stack += &here >= stack && &here < stack + sizeof stack;
    out_of(number - SIGUSR1);
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    CALL(sigaltstack, &alternate, 0, 0, 0);
    on_signal(SIGUSR1, on_user, SA_ONSTACK | SA_NODEFER);
    for (volatile int i = 0; i < 5; i++) {
        if (__builtin_setjmp(place) == 0) CALL(kill, CALL(getpid, 0, 0, 0, 0), SIGUSR1, 0, 0);
        else landed++;
    }
    if (__builtin_setjmp(place) == 0) out_of(20);
    else landed += 10;
    say_number("landed", landed);
    say_number("on_stack", on_stack);
    return 0;
}
