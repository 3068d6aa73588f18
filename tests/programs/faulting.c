// Runs the cases of faulting.py, whose comment explains the arguments.
#include "start.h"

struct each {
    void (*run)(void);
    long needs_stack;
};
extern const struct each all[], end_of_all[];
_Alignas(64) long cell[64];
static int how, tries;

static void on_fault(int number, void *info, void *context) {
    (void)number, (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (how == 'm' && tries++ < 5) {
        registers[REG_RAX] = (long)cell;
        registers[REG_RCX] = 1;
        return;
    }
    registers[REG_RIP] = registers[REG_R12];
    if (how == 'l')
        __asm__ volatile("mov %0, %%r13\n jmp *%1" : : "a"(registers[REG_R13]), "d"(registers[REG_R12]));
}

static char stack[1 << 16], of_thread[1 << 12];

void spawn(void *stack);
__asm__("spawn: mov %rdi, %rsi\nmov $0x50f00, %edi\nmov $56, %eax\nsyscall\n"
        "test %eax, %eax\njnz 1f\nmov $60, %eax\nxor %edi, %edi\nsyscall\n1: ret\n");

int main(int argc, char **argv, char **envp) {
    (void)envp;
    if (argc < 3) return 1;
    long flags = 0;
    for (const char *at = argv[1]; *at; at++) flags = flags * 10 + *at - '0';
    how = *argv[2];
    if (argc > 3) spawn(of_thread + sizeof of_thread);
    // a page of a file that has none
    long file = CALL(memfd_create, "empty", 0, 0, 0);
    call6(__NR_mmap, 0x20000000, 4096, 3 /* to read and write */, 0x11 /* MAP_SHARED, MAP_FIXED */, file, 0);
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    if (flags & SA_ONSTACK) CALL(sigaltstack, &other, 0, 0, 0);
    for (const struct each *each = all; each < end_of_all; each++) {
        static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
        unsigned long none = 0;
        if (each->needs_stack && !(flags & SA_ONSTACK)) continue;
        // a handler may not have returned
        CALL(rt_sigprocmask, SIG_SETMASK, &none, 0, 8);
        // signals that were sent before and ignored do not matter here
        int sent = numbers[(each - all) % 4];
        on_signal(sent, SIG_IGN, 0);
        CALL(kill, CALL(getpid, 0, 0, 0, 0), sent, 0, 0);
        for (int i = 0; i < 4; i++) on_signal(numbers[i], on_fault, flags);
        tries = 0;
        each->run();
    }
    return 0;
}
