/* Calls `lookup` nine times. Each call takes 26 instructions, but that with key 7, which a thread makes, 1654.
   One of five calls of `raise_at_3` is interrupted by a signal. */
#include <pthread.h>
#include <signal.h>

int lookup(int key);

/* burn(n): 2 n + 1 instructions. */
__asm__("burn:   dec %edi\n"
        "        jnz burn\n"
        "        ret\n"
        "        .type burn, @function\n"
        "        .size burn, . - burn\n"
        "load:   mov $500, %edi\n"
        "        call burn\n"
        "        mov $300, %edi\n"
        "        call burn\n"
        "        ret\n"
        "        .type load, @function\n"
        "        .size load, . - load\n"
        "        .globl lookup\n"
        "lookup: cmp $7, %edi\n"
        "        je 1f\n"
        "        mov $10, %edi\n"
        "        call burn\n"
        "        ret\n"
        "1:      call load\n"
        "        mov $20, %edi\n"
        "        call burn\n"
        "        ret\n"
        "        .type lookup, @function\n"
        "        .size lookup, . - lookup\n");

static void *look_up_slowly(void *nothing)
{
    lookup(7);
    return nothing;
}

static void handle(int number)
{
    lookup(number);
}

__attribute__((noipa)) static void raise_at_3(int number)
{
    if (number == 3)
        raise(SIGUSR1);
}

int main(void)
{
    signal(SIGUSR1, handle);
    for (int number = 0; number < 5; number++)
        raise_at_3(number);
    for (int key = 1; key < 9; key++)
        if (key != 7)
            lookup(key);
    pthread_t thread;
    return pthread_create(&thread, 0, look_up_slowly, 0) || pthread_join(thread, 0);
}
