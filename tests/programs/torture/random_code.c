// Runs random machine code: `random_code SEED RUNS [known]`. Each of RUNS runs ends by a fault or a timer. Results are
// not printed, since they may depend on addresses and time.
#include <asm/prctl.h>
#include <sys/time.h>
#include <ucontext.h>

#include "torture.h"

enum { SIZE = 512 };

static uint64_t state;

static uint32_t drawn(void) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33);
}

static uint8_t *code, *data;
static jmp_buf after;
static unsigned long own_fs;  // base of FS, where the C library has what every function of it looks at

// No system calls, and nothing that waits: INT, SYSCALL, SYSENTER, UMWAIT and TPAUSE by their bytes wherever they are.
static int harmless(const uint8_t *at) {
    if (at[0] == 0xcd) return 0;
    if (at[0] == 0x0f) return at[1] != 0x05 && at[1] != 0x34 && at[1] != 0xae && at[1] != 0x07 && at[1] != 0x35;
    return 1;
}

static int any_of(uint8_t byte, const char *bytes) {
    return byte && strchr(bytes, byte);
}

// QEMU runs some encodings that processors reject: illegal LOCK, reserved encodings of C6H, C7H and 8FH, and VEX
// without a required prefix. It also keeps 16 bits of a branch target after 66H, unlike Intel's processors. This finds
// their bytes at any position, and some more.
static int known(const uint8_t *at) {
    int memory = (at[2] & 0xc0) != 0xc0;
    if (at[0] == 0xf0) return memory && at[1] < 0x38 && (at[1] & 6) == 0;
    if (at[0] == 0xc6 || at[0] == 0xc7 || at[0] == 0x8f) return (at[1] & 0x38) == 0;
    if (at[0] == 0xc4 || at[0] == 0xc5) return (at[0] == 0xc4 ? at[2] : at[1]) & 3;
    if (at[0] == 0x66)
        return (at[1] & 0xf0) != 0x70 && (at[1] & 0xf0) != 0x40 &&
               !any_of(at[1], "\x0f\x26\x2e\x36\x3e\x64\x65\x66\x67\xc2\xc3\xe0\xe1\xe2\xe3\xe8\xe9\xeb\xf2\xf3\xff");
    return 1;
}

static void fill(int all_known) {
    // Instructions that rarely fault: short jumps, ALU, and some that compilers never emit.
    static const uint8_t often[] = {0x74, 0x75, 0x78, 0xeb, 0x01, 0x31, 0x89, 0x85, 0xff, 0xe8, 0xc3, 0x90, 0xf0, 0xc6,
        0xc7, 0x8f, 0x66, 0xf2, 0xf3, 0x48, 0xe2};
    for (int i = 0; i < SIZE; i++) {
        code[i] = drawn() % 3 ? (uint8_t)drawn() : often[drawn() % sizeof often];
        if ((code[i] & 0xf0) == 0x70 || code[i] == 0xeb) code[++i] = (uint8_t)(drawn() % 24 - 6);
    }
    for (int i = 0; i < SIZE - 1; i++)
        if (!harmless(code + i) || (all_known && !known(code + i))) code[i] = 0x90;
    code[SIZE - 1] = 0x90;
    memset(code + SIZE, 0xcc, 64);
}

static void ended(int number, siginfo_t *info, void *frame) {
    (void)number, (void)info;
    ucontext_t *context = frame;
    context->uc_mcontext.gregs[REG_EFL] &= ~0x500l;  // direction, and TF where POPF set it
    long result = SYS_arch_prctl;  // MOV FS may have cleared it; not by the C library, which sets errno there
    __asm__ volatile("syscall" : "+a"(result) : "D"(ARCH_SET_FS), "S"(own_fs) : "rcx", "r11", "memory");
    __builtin_longjmp(after, 1);
}

static void enter(void) {
    __asm__ volatile(
        "mov %1, %%rsi\n mov %1, %%rdi\n mov %1, %%rbx\n mov %1, %%rbp\n mov %1, %%rsp\n"
        "mov $40, %%ecx\n mov %1, %%rdx\n mov %1, %%r8\n mov %1, %%r9\n mov %1, %%r10\n mov %1, %%r11\n mov %1, %%r12\n"
        "mov %1, %%r13\n mov %1, %%r14\n mov %1, %%r15\n jmp *%0"
        : : "a"(code), "c"(data) : "memory");
}

int main(int size, char **words) {
    static const int ends[] = {SIGSEGV, SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGALRM};
    static char other[65536];
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    state = size > 1 ? strtoul(words[1], 0, 0) * 2654435761u + 1 : 1;
    int runs = size > 2 ? atoi(words[2]) : 20, all_known = size > 3;
    sigaltstack(&stack, 0);
    syscall(SYS_arch_prctl, ARCH_GET_FS, &own_fs);
    for (int i = 0; i < 6; i++) {
        struct sigaction action = {.sa_sigaction = ended, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
        sigaction(ends[i], &action, 0);
    }
    code = mmap((void *)0x20000000, 2 * PAGE, ALL, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    data = (uint8_t *)mmap(0, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 32 * PAGE;
    for (volatile int i = 0; i < runs; i++) {
        fill(all_known);
        struct itimerval soon = {{0, 5000}, {0, 5000}};  // again: the first may come before the code
        if (!__builtin_setjmp(after)) {
            setitimer(ITIMER_REAL, &soon, 0);  // from here on there is somewhere to jump to
            enter();
        }
        // The handler ended by a jump: its stack is free, and the flags are those of the handler. POPF may have set AC,
        // and the C library accesses memory as it likes.
        __asm__ volatile("pushf\n andl $~0x40000, (%%rsp)\n popf\n cld\n fninit" : : : "memory", "cc");
    }
    signal(SIGALRM, SIG_IGN);
    puts("ran");
    return 0;
}
