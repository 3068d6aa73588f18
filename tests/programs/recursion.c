// Calls nested deeper than the 64 entries of the return stack, from one call site and from two alternately.
#include "start.h"

__attribute__((noinline)) static long down(long n) {
    OPAQUE(n);
    return n == 0 ? 0 : n + down(n - 1);
}

static long odd(long n);
__attribute__((noinline)) static long even(long n) {
    OPAQUE(n);
    return n == 0 ? 1 : odd(n - 1) + 1;
}
__attribute__((noinline)) static long odd(long n) {
    OPAQUE(n);
    return n == 0 ? 0 : even(n - 1) + 2;
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    say_number("down", down(63));
    say_number("down", down(64));
    say_number("down", down(65));
    say_number("down", down(500));
    say_number("even", even(200));
    return 0;
}
