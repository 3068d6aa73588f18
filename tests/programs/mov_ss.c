// MOV SS holds off traps for one instruction: in its shadow a plain instruction, a jump, a taken and a not taken
// branch, a call and a return.
#include "start.h"

long shadow(long);

__asm__(
    "shadow: mov %ss, %ecx\n xor %eax, %eax\n"
    "mov %ecx, %ss\n lea 1(%rdi), %rax\n"
    "mov %ecx, %ss\n jmp 1f\n ud2\n"
    "1: test %rdi, %rdi\n mov %ecx, %ss\n jz 2f\n add $10, %rax\n"
    "2: mov %ecx, %ss\n call 3f\n add $100, %rax\n"
    "mov %ecx, %ss\n mov %ecx, %ss\n add $1000, %rax\n"
    "ret\n"
    "3: add $10000, %rax\n mov %ecx, %ss\n ret\n");

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    say_number("zero", shadow(0));
    say_number("one", shadow(1));
    return 0;
}
