// Calls through pointers for a while, which makes many packets, then writes through a null one. With one argument
// it runs forever, with two it executes itself before the write.
#include "start.h"

static long add(long a) { return a + 1; }
static long twice(long a) { return 2 * a; }
static long (*volatile table[])(long) = {add, twice, add};

__attribute__((noinline)) static long some(long value) {
    for (int i = 0; i < 30; i++) value = table[i % 3](value) & 0xffff;
    return value;
}

int main(int argc, char **argv, char **envp) {
    (void)envp;
    say("running\n");
    long value = 0;
    for (int i = 0; i < 50 || argc == 2; i++) value = some(value);
    volatile long *volatile nowhere = 0;
    say_number("value", value);
    char *alone[] = {argv[0], 0};
    if (argc > 2) CALL(execve, argv[0], alone, 0, 0);
    *nowhere = value;
    return 0;
}
