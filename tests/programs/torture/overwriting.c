// Instructions that overwrite code that is about to run, or themselves: the number of the case is the mode.
#include "torture.h"

static uint8_t *code;

static void put(const uint8_t *bytes, size_t size) {
    memset(code, 0xcc, 256);
    memcpy(code, bytes, size);
}

#define PUT(...) put((const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

// EAX of the code, or minus the signal that ended it.
static long run(long rcx, uint8_t *rdi, long rax) {
    int number = sigsetjmp(landing, 1);
    if (number) return -number;
    uint8_t *at = code;
    __asm__ volatile("push %%rbp\n call *%1\n pop %%rbp\n cld"
                     : "+a"(rax), "+r"(at), "+c"(rcx), "+D"(rdi)
                     :
                     : "memory", "cc", "rdx", "rsi", "rbx", "r8", "r9", "r10", "r11");
    return rax;
}

enum { NOP = 0x90, TURNS = 8 };

#define CASE(name, ...)                                             \
    static int name(void) {                                         \
        static const int ends[] = {SIGSEGV, SIGILL, SIGTRAP, SIGBUS, SIGFPE}; \
        long sum = 0;                                               \
        code = pages(ALL);                                          \
        for (unsigned i = 0; i < 5; i++) signal(ends[i], land);     \
        for (volatile int i = 0; i < TURNS; i++) { __VA_ARGS__ }    \
        printf("%ld\n", sum);                                       \
        return 0;                                                   \
    }

#define INC 0xff, 0xc0

CASE(string_over_what_follows, PUT(0xf3, 0xaa, INC, INC, INC, INC, 0xc3); sum += run(4, code + 2, NOP);)
CASE(string_over_itself, PUT(0xf3, 0xaa, INC, INC, INC, INC, 0xc3); sum += run(8, code, NOP);)
CASE(string_from_before, PUT(NOP, NOP, NOP, NOP, 0xf3, 0xaa, INC, INC, INC, 0xc3); sum += run(10, code, NOP);)
CASE(string_backwards, PUT(0xfd, 0xf3, 0xaa, 0xfc, INC, INC, 0xc3); sum += run(6, code + 7, NOP);)
CASE(store_over_itself, PUT(0x88, 0x07, INC, INC, 0xc3); sum += run(0, code, NOP);)
CASE(store_before_itself, PUT(NOP, NOP, 0x88, 0x07, INC, 0xc3); sum += run(0, code, NOP);)
CASE(store_over_a_branch, PUT(0x85, 0xff, 0x88, 0x07, 0x75, 2, INC, INC, 0xc3);
    sum += run(0, code + 4, i & 1 ? 0x74 : 0x75);)
CASE(last_turn_of_a_loop, PUT(0xff, 0xc9, 0x83, 0xf9, 3, 0x75, 2, 0x88, 0x07, 0x85, 0xc9, 0x75, 0xf3, 0xc3);
     sum += run(20, code + 11, 0x74);)
CASE(stack_in_code, PUT(0x48, 0x89, 0xe3, 0x48, 0x8d, 0x25, 14, 0, 0, 0, 0x50, 0x48, 0x89, 0xdc, INC, INC, INC, INC,
    INC, 0xc3);
     sum += run(0, 0, (long)0x9090909090909090);)
CASE(return_address_in_code, PUT(0x48, 0x89, 0xe3, 0x48, 0x8d, 0x25, 0x1a, 0, 0, 0, 0xe8, 3, 0, 0, 0, 0x48, 0x89, 0xdc,
    0xc3, NOP, NOP, INC, 0xc3);
     sum += run(0, 0, 1);)
CASE(off_the_page, PUT(0x48, 0xab, INC, 0xc3); munmap(code + PAGE, PAGE); sum += run(0, code + PAGE - 4, 5);)
CASE(locked_exchange, PUT(0xf0, 0x0f, 0xb0, 0x0f, INC, INC, 0xc3); sum += run(NOP, code + 4, 0xff);)
CASE(wide_store, PUT(0x66, 0x48, 0x0f, 0x6e, 0xc0, 0x66, 0x0f, 0x6c, 0xc0, 0x0f, 0x11, 0x07, INC, INC, INC, INC, INC,
    INC, INC, INC, INC, 0xc3);
     sum += run(0, code + 12, (long)0x9090909090909090);)

MODES(MODE(string_over_what_follows), MODE(string_over_itself), MODE(string_from_before), MODE(string_backwards),
      MODE(store_over_itself), MODE(store_before_itself), MODE(store_over_a_branch), MODE(last_turn_of_a_loop),
      MODE(stack_in_code), MODE(return_address_in_code), MODE(off_the_page), MODE(locked_exchange), MODE(wide_store));
MAIN
