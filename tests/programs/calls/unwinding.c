/* Recursion, longjmp through frames, and signal handlers that return or jump out. */
#include "entry_log.h"
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>

static jmp_buf outer, levels[16];
static sigjmp_buf before_signal;
static volatile int sum;

NOINLINE static int work(int count)
{
    for (int i = 0; i < count; i++)
        sum += i ^ count;
    return sum;
}

static int is_odd(int number);
NOINLINE static int is_even(int number) { return number ? is_odd(number - 1) + work(1) : work(2); }
NOINLINE static int is_odd(int number) { return number ? is_even(number - 1) + work(1) : work(3); }

NOINLINE static int descend(int depth)
{
    work(2);
    if (!depth)
        longjmp(outer, 1);
    return descend(depth - 1) + work(3);
}

NOINLINE static int leave_frames(int depth)
{
    if (!setjmp(outer))
        descend(depth);
    return work(1);
}

/* Each level has a setjmp at the same site. */
NOINLINE static int leave_to_level(int level, int target)
{
    if (setjmp(levels[level]))
        return work(4);
    if (level == 8)
        longjmp(levels[target], 1);
    return leave_to_level(level + 1, target) + work(1);
}

NOINLINE static void handle(int number) { work(number); }
NOINLINE static void leave_handler(int number)
{
    work(number);
    siglongjmp(before_signal, 1);
}

NOINLINE static int raise_and_leave(void)
{
    if (!sigsetjmp(before_signal, 1)) {
        work(2);
        kill(getpid(), SIGUSR1);
        abort();
    }
    return work(3);
}

NOINLINE static int raise_in_recursion(int depth)
{
    if (depth == 2)
        kill(getpid(), SIGUSR2);
    return depth ? raise_in_recursion(depth - 1) + work(1) : work(2);
}

UNLOGGED int main(void)
{
    signal(SIGUSR1, leave_handler);
    signal(SIGUSR2, handle);
    is_even(9);
    for (int depth = 0; depth < 6; depth++)
        leave_frames(depth);
    for (int target = 0; target < 8; target++)
        leave_to_level(0, target);
    for (int i = 0; i < 3; i++) {
        raise_and_leave();
        raise_in_recursion(4);
    }
    write_log();
    return 0;
}
