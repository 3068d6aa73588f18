/* Threads that recurse, and functions with unusual names. */
#include "entry_log.h"
#include <pthread.h>

static volatile int sum;

NOINLINE static int work(int count)
{
    for (int i = 0; i < count; i++)
        sum += i ^ count;
    return sum;
}

/* A name that needs quotes in assembly, and one that tools of call traces treat specially. */
static int odd(int count) __asm__("\"odd name; <&> 'x' %s\"");
static int jump(int count) __asm__("siglongjmp");

NOINLINE static int odd(int count) { return work(count) + 1; }
NOINLINE static int jump(int count) { return odd(count) + work(1); }

NOINLINE static int recurse(int depth)
{
    return depth ? recurse(depth - 1) + jump(depth) + recurse(depth / 2) : work(2);
}

UNLOGGED static void *run(void *number)
{
    current_stack = (long)number;
    recurse(2 + (int)(long)number);
    current_stack = 0;
    return 0;
}

UNLOGGED int main(void)
{
    recurse(3);
    /* One after the other, because the log is not locked. */
    for (long number = 1; number < 4; number++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, run, (void *)number) || pthread_join(thread, 0))
            return 1;
    }
    odd(5);
    write_log();
    return 0;
}
