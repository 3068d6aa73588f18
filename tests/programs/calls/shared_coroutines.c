/* Two threads take turns to resume coroutines: each coroutine continues in the other thread. */
#include "entry_log.h"
#include <pthread.h>
#include <ucontext.h>

#define COROUTINES 4
#define ROUNDS 40

static char stacks[COROUTINES][1 << 14];
static ucontext_t thread_contexts[2], contexts[COROUTINES];
static int thread, running, is_done[COROUTINES];
static volatile int sum;
static int turn;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t next_turn = PTHREAD_COND_INITIALIZER;

NOINLINE static int work(int count)
{
    for (int i = 0; i < count; i++)
        sum += i ^ count;
    return sum;
}

/* Not logged: a switch happens in the middle of these functions. */
UNLOGGED NOINLINE static void yield(void)
{
    current_stack = -thread;
    swapcontext(&contexts[running], &thread_contexts[thread]);
}

UNLOGGED NOINLINE static void resume(int number)
{
    running = number;
    current_stack = 1 + number;
    swapcontext(&thread_contexts[thread], &contexts[number]);
    current_stack = -thread;
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
    yield();
    visit(depth - 1);
}

NOINLINE static void visit_later(int depth)
{
    work(1);
    visit(depth);
}

UNLOGGED static void run(int number)
{
    if (number & 1)
        visit(2);
    else
        visit_later(3);
    is_done[number] = 1;
    current_stack = -thread;
    setcontext(&thread_contexts[thread]);
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

/* Not logged: both threads are in these functions at once. */
UNLOGGED NOINLINE static void resume_one(int round)
{
    int number = round / 2 % COROUTINES;
    thread = round & 1;
    current_stack = -thread;
    for (int i = 0; i < COROUTINES && is_done[number]; i++)
        number = (number + 1) % COROUTINES;
    if (!is_done[number])
        resume_below(number, round % 3);
}

UNLOGGED static void *take_turns(void *number)
{
    pthread_mutex_lock(&lock);
    while (turn < ROUNDS) {
        if ((turn & 1) == (number != NULL)) {
            resume_one(turn++);
            pthread_cond_broadcast(&next_turn);
        } else {
            pthread_cond_wait(&next_turn, &lock);
        }
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

UNLOGGED int main(void)
{
    pthread_t second;
    for (int i = 0; i < COROUTINES; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = sizeof stacks[i];
        makecontext(&contexts[i], (void (*)(void))run, 1, i);
    }
    pthread_create(&second, NULL, take_turns, &second);
    take_turns(NULL);
    pthread_join(second, NULL);
    write_log();
    return 0;
}
