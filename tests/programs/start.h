// What a program without a C library needs: an entry point, system calls, output, signal actions, jumps.
// Include it in exactly one file a program.
#ifndef START_H
#define START_H

#include <asm/unistd.h>
#include <signal.h>
#include <ucontext.h>

static inline long call6(long n, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

#define CALL(name, a, b, c, d) \
    call6(__NR_##name, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)

static inline void leave(int status) {
    for (;;) CALL(exit_group, status, 0, 0, 0);
}

static void say(const char *text) {
    long size = 0;
    while (text[size]) size++;
    CALL(write, 1, text, size, 0);
}

// Prints "label number" and a newline.
__attribute__((unused)) static void say_number(const char *label, long number) {
    char text[24];
    int at = sizeof text - 1;
    unsigned long left = number < 0 ? -(unsigned long)number : (unsigned long)number;
    text[at] = 0;
    text[--at] = '\n';
    do text[--at] = '0' + left % 10;
    while (left /= 10);
    if (number < 0) text[--at] = '-';
    text[--at] = ' ';
    say(label);
    say(text + at);
}

struct kernel_action {
    void *handler;
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

void restore_frame(void);
__asm__(".globl restore_frame\nrestore_frame: mov $15, %eax\nsyscall\n");

__attribute__((unused)) static void on_signal(int number, void *handler, unsigned long flags) {
    struct kernel_action action = {handler, flags | 0x04000000 /* SA_RESTORER */, restore_frame, 0};
    CALL(rt_sigaction, number, &action, 0, 8);
}

// Keeps a value, and with it the work that made it, out of the optimizer's sight.
#define OPAQUE(value) __asm__ volatile("" : "+r"(value))

int main(int argc, char **argv, char **envp);

__attribute__((used)) static void begin(long *stack) {
    char **argv = (char **)(stack + 1);
    leave(main((int)stack[0], argv, argv + stack[0] + 1));
}

__asm__(".globl _start\n_start: xor %ebp, %ebp\nmov %rsp, %rdi\nand $-16, %rsp\ncall begin\n");

#endif
