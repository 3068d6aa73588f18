// Says that it runs, then never ends.
#include "start.h"

__attribute__((noinline)) static long step(long x) {
    OPAQUE(x);
    return x & 1 ? 3 * x + 1 : x >> 1;
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    say("running\n");
    for (long x = 27;; x = x == 1 ? 27 : step(x)) OPAQUE(x);
}
