// Indirect calls and jumps: a table of functions, a callback, a dense switch, and computed jumps.
#include "start.h"

static long add(long a, long b) { return a + b; }
static long sub(long a, long b) { return a - b; }
static long mul(long a, long b) { return a * b; }
static long (*volatile table[])(long, long) = {add, sub, mul};

__attribute__((noinline)) static long fold(long (*step)(long, long), long value, int times) {
    for (int i = 1; i <= times; i++) value = step(value, i);
    return value;
}

__attribute__((noinline)) static long choose(long n) {
    OPAQUE(n);
    static const void *const places[] = {&&zero, &&one, &&two, &&three};
    goto *places[n & 3];
zero:
    return 10;
one:
    n += 5;
    OPAQUE(n);
two:
    return n;
three:
    return choose(n - 1) * 2;
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    long value = 0;
    for (int i = 0; i < 30; i++) value = table[i % 3](value, i) & 0xffff;
    say_number("table", value);
    say_number("fold", fold(table[0], 0, 100) + fold(table[2], 1, 10));
    long sum = 0;
    for (long i = 0; i < 40; i++) sum += choose(i);
    say_number("choose", sum);
    return 0;
}
