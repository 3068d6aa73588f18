// Instructions as compilers do not write them: lengths, prefixes, overlaps, page ends, every way to transfer control.
#include "torture.h"

static int tell(int sum) {
    printf("%d %d\n", sum, counted);
    return 0;
}

static void catch_faults(void) {
    static const int numbers[] = {SIGSEGV, SIGILL, SIGBUS};
    for (int i = 0; i < 3; i++) signal(numbers[i], land);
}

// Whether calling it ended in a fault.
static int faults(const void *code) {
    if (sigsetjmp(landing, 1)) return 1;
    call(code, 1);
    return 0;
}

static int strings(void) {
    static char from[100000], to[100000];
    void *target = from, *source = from;
    long size = sizeof from;
    __asm__ volatile("rep stosb" : "+D"(target), "+c"(size) : "a"(7) : "memory");
    target = from, size = 50;
    __asm__ volatile("repne scasb" : "+D"(target), "+c"(size) : "a"(9) : "cc");
    target = from, size = 0;
    __asm__ volatile("rep stosb" : "+D"(target), "+c"(size) : "a"(7) : "memory");
    target = to, size = sizeof to;
    __asm__ volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(size) : : "memory");
    return tell(to[99999]);
}

static int string_faults(void) {
    uint8_t *memory = pages(PROT_READ | PROT_WRITE);
    mprotect(memory + PAGE, PAGE, PROT_NONE);
    catch_faults();
    for (volatile int i = 0; i < 5; i++) {
        void *target = memory;
        long size = 2 * PAGE;
        if (sigsetjmp(landing, 1)) counted++;
        else __asm__ volatile("rep stosb" : "+D"(target), "+c"(size) : "a"(7) : "memory");
    }
    return tell(memory[PAGE - 1]);
}

static int ends_of_pages(void) {
    uint8_t *code = pages(ALL);
    int sum = 0;
    munmap(code + PAGE, PAGE);
    put_value(code + PAGE - 6, 3);
    sum += call(code + PAGE - 6, 0);
    put_odd(code + PAGE - ODD_SIZE, 9);
    sum += call(code + PAGE - ODD_SIZE, 1);
    catch_faults();
    for (volatile int i = 1; i < 15; i++) {  // prefixes, and no page for what they belong to
        memset(code + PAGE - i, 0x66, i);
        counted += faults(code + PAGE - i);
    }
    return tell(sum);
}

static int fifteen_bytes(void) {
    uint8_t *code = pages(ALL), *at = code;
    static const uint8_t add[] = {0x81, 0xc7, 1, 0, 0, 0};
    memset(at, 0x2e, 9), at += 9;
    memcpy(at, add, sizeof add), at += sizeof add;
    memset(at, 0x66, 14), at += 14;
    *at++ = 0x90;
    memset(at, 0x3e, 12), at += 12;
    *at++ = 0x89, *at++ = 0xf8, *at++ = 0xc3;
    int sum = call(code, 4);
    catch_faults();
    memset(code, 0x66, 15), code[15] = 0x90, code[16] = 0xc3;  // one too many
    counted += faults(code);
    return tell(sum);
}

// The immediate of one instruction is another.
static int overlaps(void) {
    static const uint8_t bytes[] = {0xb8, 0xff, 0xc0, 0xc3, 0, 0xeb, 0xfa};
    uint8_t *code = pages(ALL);
    int sum = 0;
    memcpy(code, bytes, sizeof bytes);
    for (int i = 0; i < 10; i++) {
        int value = i;
        void *inside = code + 1;
        __asm__ volatile("call *%1" : "+a"(value) : "r"(inside) : "memory", "cc");
        sum += value + (call(code, 0) & 0xff);
    }
    return tell(sum);
}

static int prefixed_branches(void) {
    static const uint8_t branches[][8] = {
        {3, 0x3e, 0x74, 1}, {3, 0x2e, 0x74, 1}, {3, 0x48, 0x74, 1}, {3, 0xf2, 0x74, 1}, {3, 0xf3, 0x75, 1},
        {3, 0x4f, 0x75, 1}, {3, 0x64, 0x74, 1}, {7, 0x2e, 0x0f, 0x84, 1, 0, 0, 0}, {7, 0xf2, 0x0f, 0x85, 1, 0, 0, 0},
        {6, 0x0f, 0x84, 1, 0, 0, 0},
    };
    uint8_t *code = pages(ALL);
    int sum = 0;
    for (unsigned k = 0; k < sizeof branches / sizeof *branches; k++)
        for (int i = 0; i < 4; i++) {
            uint8_t *at = code + 64 * k;
            put_value(at, k);
            at += 5;
            memcpy(at, (const uint8_t[]){0xf7, 0xc7, 1, 0, 0, 0}, 6), at += 6;
            memcpy(at, branches[k] + 1, branches[k][0]), at += branches[k][0];
            memcpy(at, (const uint8_t[]){0xc3, 0xff, 0xc0, 0xc3}, 4);
            sum = (3 * sum + call(code + 64 * k, i)) & 0xffffff;
        }
    // BND call, NOTRACK jump, BND jump, BND return; REX call, return that pops nothing.
    static const uint8_t bounded[] = {0xf2, 0xe8, 1, 0, 0, 0, 0xc3, 0x48, 0x8d, 0x05, 5, 0, 0, 0, 0x3e, 0xff,
                                      0xe0, 0xcc, 0xcc, 0xf2, 0xeb, 1, 0xcc, 0xb8, 9, 0, 0, 0, 0xf2, 0xc3};
    static const uint8_t wide[] = {0x31, 0xc0, 0x40, 0xe8, 1, 0, 0, 0, 0xc3, 0xff, 0xc0, 0xc2, 0, 0};
    static const uint8_t repeated[] = {0xb8, 5, 0, 0, 0, 0xf3, 0xc3};
    memcpy(code + 1024, bounded, sizeof bounded), sum += call(code + 1024, 0);
    memcpy(code + 2048, wide, sizeof wide), sum += call(code + 2048, 0);
    memcpy(code + 3072, repeated, sizeof repeated), sum += call(code + 3072, 0);
    return tell(sum);
}

// Near branches with an operand size prefix: Intel's processors ignore it, on AMD's it leaves 16 bits of the target.
static int narrow_branches(void) {
    static const uint8_t branches[][8] = {
        {3, 0x66, 0x74, 1}, {3, 0x66, 0x75, 1}, {3, 0x66, 0xeb, 1}, {3, 0x66, 0xe3, 1},
        {7, 0x66, 0x0f, 0x84, 1, 0, 0, 0},
        {6, 0x66, 0xe9, 1, 0, 0, 0}, {6, 0x66, 0xe8, 1, 0, 0, 0}, {2, 0x66, 0xc3}, {4, 0x66, 0xff, 0xe0},
    };
    uint8_t *code = pages(ALL);
    catch_faults();
    for (volatile unsigned k = 0; k < sizeof branches / sizeof *branches; k++)
        for (volatile int i = 0; i < 4; i++) {
            uint8_t *at = code + 64 * k;
            memcpy(at, (const uint8_t[]){0x48, 0x8d, 0x05, 13, 0, 0, 0}, 7), at += 7;
            memcpy(at, (const uint8_t[]){0xf7, 0xc7, 1, 0, 0, 0}, 6), at += 6;
            memcpy(at, branches[k] + 1, branches[k][0]), at += branches[k][0];
            memcpy(at, (const uint8_t[]){0xc3, 0x90, 0xc3, 0x90, 0xc3}, 5);
            if (sigsetjmp(landing, 1)) counted++;
            else call(code + 64 * k, i);
        }
    return tell(0);
}

static int loops(void) {
    int sum = 0;
    long left = 20;
    __asm__ volatile("1: inc %0\n loop 1b" : "+r"(sum), "+c"(left) : : "cc");
    left = 0;
    __asm__ volatile("jrcxz 1f\n inc %0\n 1: nop" : "+r"(sum), "+c"(left) : : "cc");
    left = 5;
    __asm__ volatile("1: cmp $3, %%ecx\n loopne 1b\n inc %0" : "+r"(sum), "+c"(left) : : "cc");
    left = 0x100000005;
    __asm__ volatile("1: addr32 loop 1b\n inc %0" : "+r"(sum), "+c"(left) : : "cc");
    left = 0x100000000;
    __asm__ volatile("jecxz 1f\n inc %0\n 1: nop" : "+r"(sum), "+c"(left) : : "cc");
    return tell(sum);
}

static int returns(void) {
    long sum = 0;
    for (int i = 0; i < 20; i++) {
        long here;
        __asm__ volatile("call 1f\n 1: pop %0" : "=r"(here) : : "memory");
        sum ^= here;
    }
    __asm__ volatile("lea 1f(%%rip), %%rax\n push %%rax\n ret\n 1: nop" : : : "rax", "memory");
    __asm__ volatile("call 2f\n ud2\n 2: lea 4f(%%rip), %%rax\n mov %%rax, (%%rsp)\n ret\n 3: ud2\n 4: nop"
        : : : "rax", "memory");
    for (int i = 0; i < 5; i++) __asm__ volatile("call 1f\n jmp 2f\n 1: ret $0\n 2: nop" : : : "memory");
    return tell((int)sum);
}

// More calls than a return stack has entries.
static int deep_calls(void) {
    static const uint8_t bytes[] = {0xff, 0xcf, 0x78, 5, 0xe8, 0xf7, 0xff, 0xff, 0xff, 0xc3};
    uint8_t *code = pages(ALL);
    memcpy(code, bytes, sizeof bytes);
    call(code, 300);
    return tell(1);
}

static int interrupt_returns(void) {
    unsigned long code, stack;
    __asm__("mov %%cs, %0\n mov %%ss, %1" : "=r"(code), "=r"(stack));
    for (int i = 0; i < 5; i++)
        __asm__ volatile("mov %%rsp, %%rax\n push %1\n push %%rax\n pushf\n push %0\n"
            " lea 1f(%%rip), %%rax\n push %%rax\n iretq\n 1: nop"
                         : : "r"(code), "r"(stack) : "rax", "memory", "cc");
    return tell(2);
}

static int far_returns(void) {
    unsigned long code;
    __asm__("mov %%cs, %0" : "=r"(code));
    for (int i = 0; i < 5; i++)
        __asm__ volatile("push %0\n lea 1f(%%rip), %%rax\n push %%rax\n lretq\n 1: nop"
            : : "r"(code) : "rax", "memory");
    return tell(3);
}

static int calls_of_32_bits(void) {
    int first, second;
    __asm__ volatile("int $0x80" : "=a"(first) : "a"(20) : "memory");  // getpid
    __asm__ volatile("int $0x80" : "=a"(second) : "a"(20) : "memory");
    printf("%d\n", first == getpid() && second == first);
    __asm__ volatile("int $0x80" : : "a"(1), "b"(6));  // exit
    return 1;
}

static int call_at_a_page_end(void) {
    static const uint8_t pid[] = {0xb8, 39, 0, 0, 0, 0x0f, 0x05};
    static const uint8_t leave[] = {0xbf, 5, 0, 0, 0, 0xb8, 231, 0, 0, 0, 0x0f, 0x05};
    uint8_t *code = pages(ALL);
    munmap(code + PAGE, PAGE);
    memcpy(code + PAGE - sizeof pid, pid, sizeof pid);
    catch_faults();
    for (volatile int i = 0; i < 3; i++) counted += faults(code + PAGE - sizeof pid);
    tell(0);
    memcpy(code + PAGE - sizeof leave, leave, sizeof leave);
    return call(code + PAGE - sizeof leave, 0);
}

static int not_executable(void) {
    static const uintptr_t nowhere[] = {0, 1, 0x7fffffffffff, 0x800000000000, UINTPTR_MAX, 0xffffffff81000000};
    uint8_t *code = pages(PROT_READ | PROT_WRITE);
    put_value(code, 1);
    catch_faults();
    for (volatile int i = 0; i < 3; i++) counted += faults(code);
    for (volatile unsigned i = 0; i < 6; i++) counted += faults((const void *)nowhere[i]);
    for (volatile unsigned i = 0; i < 6; i++)
        if (sigsetjmp(landing, 1)) counted++;
        else __asm__ volatile("push %0\n ret" : : "r"(nowhere[i]) : "memory");
    mprotect(code, PAGE, PROT_NONE);
    counted += faults(code);
    mprotect(code, PAGE, ALL);
    put_odd(code, 8);
    return tell(call(code, 1));
}

static int through_gs(void) {
    static uintptr_t table[8];
    uint8_t *code = pages(ALL);
    int value;
    table[2] = (uintptr_t)code;
    put_odd(code, 5);
    syscall(SYS_arch_prctl, 0x1001, table);  // ARCH_SET_GS
    __asm__ volatile("call *%%gs:16" : "=a"(value) : "D"(1) : "memory", "cc");
    __asm__ volatile("lea 1f(%%rip), %%rax\n mov %%rax, %%gs:24\n jmp *%%gs:24\n 1: nop" : : : "rax", "memory");
    return tell(value);
}

// A page that the kernel executes for the program, if it has it.
static int vsyscall(void) {
    const uintptr_t page = 0xffffffffff600000;
    catch_faults();
    if (sigsetjmp(landing, 1)) return tell(-1);
    long now = ((long (*)(long *))(page + 0x400))(0);
    int there = ((int (*)(unsigned *, unsigned *, void *))(page + 0x800))(0, 0, 0);
    return tell((now > 0) + 2 * (there == 0));
}

static int pushed_flags(void) {
    unsigned long flags;
    __asm__ volatile("pushf\n pop %0" : "=r"(flags));
    return tell((int)(flags & 0x100));
}

static int of_the_processor(void) {
    unsigned a = 0, b, c = 0, d;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    __asm__ volatile("rdtsc" : "=a"(a), "=d"(d));
    __asm__ volatile("pause\n lfence\n mfence\n sfence" : : : "memory");
    return tell(1);
}

MODES(MODE(strings), MODE(string_faults), MODE(ends_of_pages), MODE(fifteen_bytes), MODE(overlaps),
      MODE(prefixed_branches), MODE(narrow_branches), MODE(loops), MODE(returns), MODE(deep_calls),
      MODE(interrupt_returns), MODE(far_returns), MODE(calls_of_32_bits), MODE(call_at_a_page_end),
      MODE(not_executable), MODE(through_gs), MODE(vsyscall), MODE(pushed_flags), MODE(of_the_processor));
MAIN
