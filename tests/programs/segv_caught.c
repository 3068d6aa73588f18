// Faults that a handler survives: by a long jump out of it, by moving RIP on, and by mending the cause and retrying.
#include <sys/mman.h>

#include "start.h"

static void *place[5];
static char *page;
static volatile int how, faults;

static void on_segv(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    faults++;
    if (how == 0) __builtin_longjmp(place, 1);
    if (how == 1) ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
    if (how == 2) CALL(mprotect, page, 4096, PROT_READ | PROT_WRITE, 0);
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    on_signal(SIGSEGV, on_segv, SA_SIGINFO | SA_NODEFER);
    for (volatile int i = 0; i < 3; i++)
        if (__builtin_setjmp(place) == 0) *(volatile char *)0 = 1;
    how = 1;
    long kept = 7;
    __asm__ volatile("mov (%1), %%al\n"  // two bytes
                     : "+a"(kept)
                     : "c"(8L));
    say_number("kept", kept);
    how = 2;
    page = (char *)call6(__NR_mmap, 0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    page[5] = 9;
    say_number("written", page[5]);
    say_number("faults", faults);
    return 0;
}
