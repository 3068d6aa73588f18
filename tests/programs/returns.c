// Returns that do not match calls: push and RET, a call to the next instruction, a swapped return address, RET n.
#include "start.h"

long pushed(long);
long position(void);
long swapped(long);
long cleans(long);

__asm__(
    // A jump by RET, as retpolines do.
    "pushed: call 1f\n"
    "2: pause\n lfence\n jmp 2b\n"
    "1: lea 3f(%rip), %rax\n mov %rax, (%rsp)\n ret\n"
    "3: lea 1(%rdi), %rax\n push %rax\n lea 4f(%rip), %rcx\n push %rcx\n ret\n"
    "4: pop %rax\n ret\n"
    // CALL with displacement 0 is no call to the return stack.
    "position: call 1f\n"
    "1: pop %rax\n lea 1b(%rip), %rcx\n sub %rcx, %rax\n ret\n"
    // The callee returns elsewhere than to its caller.
    "swapped: call 5f\n"
    "mov $-1, %eax\n ret\n"
    "6: lea 3(%rdi), %rax\n ret\n"
    "5: add $6b - 7f, %rdi\n lea 7f(%rip), %rax\n"
    "7: sub $6b - 7b, %rdi\n lea 6b(%rip), %rax\n xchg %rax, (%rsp)\n ret\n"
    "cleans: push %rdi\n push %rdi\n call 8f\n ret\n"
    "8: mov 8(%rsp), %rax\n add 16(%rsp), %rax\n ret $16\n");

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    long sum = 0;
    for (long i = 0; i < 100; i++) sum += pushed(i);
    say_number("pushed", sum);
    say_number("position", position());
    say_number("swapped", swapped(40));
    say_number("cleans", cleans(21));
    return 0;
}
