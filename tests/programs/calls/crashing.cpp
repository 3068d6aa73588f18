/* Crashes in the situation that the argument names, and writes the log before. */
#include "entry_log.h"
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

static jmp_buf outer;
static char other_stack[1 << 16];
static ucontext_t main_context, coroutine;
static int *volatile nowhere;
static volatile int sum;

#define CRASH() (write_log(), *nowhere = sum)

NOINLINE static int work(int count)
{
    for (int i = 0; i < count; i++)
        sum += i ^ count;
    return sum;
}

NOINLINE static int fail(int value)
{
    work(value);
    CRASH();
    return sum + value;
}

NOINLINE static int descend_and_jump(int depth)
{
    if (!depth)
        longjmp(outer, 1);
    return descend_and_jump(depth - 1) + work(1);
}

NOINLINE static int after_longjmp(int depth)
{
    if (!setjmp(outer))
        descend_and_jump(depth);
    work(2);
    return fail(3) + work(1);
}

NOINLINE static int even(int count);
NOINLINE static int odd(int count)
{
    work(count);
    return even(count - 1) + work(1);
}
NOINLINE static int even(int count) { return count ? odd(count - 1) + work(1) : fail(2); }

NOINLINE static int handle(int number) { return fail(number) + work(1); }

UNLOGGED static void on_signal(int number)
{
    current_stack = 1;
    handle(number);
}

NOINLINE static int raise_below(int depth)
{
    if (!depth)
        kill(getpid(), SIGUSR1);
    return depth ? raise_below(depth - 1) + work(1) : work(3);
}

NOINLINE static int in_handler(int depth)
{
    stack_t stack = {};
    stack.ss_sp = other_stack;
    stack.ss_size = sizeof other_stack;
    sigaltstack(&stack, 0);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, 0);
    return raise_below(depth) + work(1);
}

UNLOGGED NOINLINE static void yield()
{
    current_stack = 0;
    swapcontext(&coroutine, &main_context);
}

UNLOGGED NOINLINE static void resume()
{
    current_stack = 1;
    swapcontext(&main_context, &coroutine);
}

NOINLINE static int visit(int depth)
{
    work(1);
    yield();
    return depth ? visit(depth - 1) + work(1) : fail(2);
}

NOINLINE static void run() { visit(3); }

NOINLINE static int resume_below(int depth)
{
    if (depth)
        return resume_below(depth - 1) + work(1);
    resume();
    return work(2);
}

NOINLINE static int in_coroutine(int)
{
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = other_stack;
    coroutine.uc_stack.ss_size = sizeof other_stack;
    coroutine.uc_link = &main_context;
    makecontext(&coroutine, run, 0);
    for (int i = 0; i < 9; i++)
        resume_below(i % 3);
    return work(1);
}

struct Guard {
    NOINLINE Guard() { work(1); }
    NOINLINE ~Guard() { work(2); }
};

NOINLINE static int throw_below(int depth)
{
    Guard guard;
    if (!depth)
        throw depth;
    return throw_below(depth - 1) + work(3);
}

NOINLINE static int after_exception(int depth)
{
    try {
        throw_below(depth);
    } catch (int) {
        work(1);
    }
    return fail(3) + work(1);
}

UNLOGGED int main(int, char **arguments)
{
    static const struct {
        const char *name;
        int (*function)(int);
    } situations[] = {
        {"recursion", even}, {"longjmp", after_longjmp}, {"handler", in_handler},
        {"coroutine", in_coroutine}, {"exception", after_exception},
    };
    for (const auto &each : situations)
        if (!strcmp(each.name, arguments[1]))
            each.function(each.function == even ? 300 : 5);
    return 1;
}
