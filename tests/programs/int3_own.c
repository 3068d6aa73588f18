// A program that catches its own INT3, in both encodings.
#include "start.h"

static volatile int traps;

static void on_trap(int number) { traps += number == SIGTRAP; }

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    on_signal(SIGTRAP, on_trap, 0);
    for (int i = 0; i < 5; i++) __asm__ volatile("int3" : : : "memory");
    __asm__ volatile(".byte 0xcd, 3" : : : "memory");
    say_number("traps", traps);
    return 0;
}
