/* Coroutines by swapcontext: recursive generators, all resumed at the same call; some never end. */
#include "entry_log.h"
#include <ucontext.h>

#define COROUTINES 6

static char stacks[COROUTINES][1 << 14];
static ucontext_t main_context, contexts[COROUTINES];
static int running, is_done[COROUTINES];
static volatile int sum;

NOINLINE static int work(int count)
{
    for (int i = 0; i < count; i++)
        sum += i ^ count;
    return sum;
}

/* Not logged: a switch happens in the middle of these functions. */
UNLOGGED NOINLINE static void yield(void)
{
    current_stack = 0;
    swapcontext(&contexts[running], &main_context);
}

UNLOGGED NOINLINE static void resume(int number)
{
    running = number;
    current_stack = 1 + number;
    swapcontext(&main_context, &contexts[number]);
    current_stack = 0;
}

NOINLINE static void visit(int depth)
{
    if (!depth) {
        work(4);
        yield();
        return;
    }
    visit(depth - 1);
    work(2);
    if (depth & 1)
        yield();
    visit(depth - 1);
}

NOINLINE static void count_up(int limit)
{
    for (int i = 0; i < limit; i++) {
        work(i);
        yield();
    }
}

NOINLINE static void run(int number)
{
    if (number & 1)
        visit(number % 3 + 2);
    else
        count_up(9 + number);
    is_done[number] = 1;
    work(1);
    current_stack = 0;
}

NOINLINE static void resume_below(int number, int depth)
{
    if (depth) {
        resume_below(number, depth - 1);
        work(1);
    } else {
        resume(number);
    }
}

UNLOGGED int main(void)
{
    for (int i = 0; i < COROUTINES; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = sizeof stacks[i];
        contexts[i].uc_link = &main_context;
        makecontext(&contexts[i], (void (*)(void))run, 1, i);
    }
    for (int round = 0; round < 25; round++)
        for (int i = 0; i < COROUTINES; i++)
            if (!is_done[i])
                resume_below(i, (round + i) % 4);
    write_log();
    return 0;
}
