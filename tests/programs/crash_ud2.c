// Ends by an illegal instruction, three calls deep.
#include "start.h"

__attribute__((noinline)) static void deep(int level) {
    OPAQUE(level);
    if (level == 0) __asm__ volatile("ud2");
    else deep(level - 1);
    OPAQUE(level);
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    say("crashing\n");
    deep(3);
    return 0;
}
