// REP MOVSB that faults in the middle and continues after the handler maps the page: one instruction, counted once.
#include <sys/mman.h>

#include "start.h"

static char *area;
static volatile int faults;

static void on_segv(int number) {
    (void)number;
    faults++;
    CALL(mprotect, area + 4096, 4096, PROT_READ | PROT_WRITE, 0);
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    on_signal(SIGSEGV, on_segv, 0);
    area = (char *)call6(__NR_mmap, 0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(mprotect, area + 4096, 4096, PROT_NONE, 0);
    static char from[40] = "as many bytes as fit before and after it";
    char *to = area + 4096 - 20, *source = from;
    long count = sizeof from;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(source), "+c"(count) : : "memory");
    say_number("left", count);
    say_number("faults", faults);
    CALL(write, 1, area + 4096 - 20, sizeof from, 0);
    say("\n");
    return 0;
}
