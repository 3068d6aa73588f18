// Far transfers that stay in 64-bit user mode: far return, far indirect jump and call, IRETQ.
#include "start.h"

long far_return(long), far_jump(long), far_call(long), interrupt_return(long);

__asm__(
    "far_return: mov %cs, %eax\n push %rax\n lea 1f(%rip), %rcx\n push %rcx\n lretq\n"
    "ud2\n"
    "1: lea 1(%rdi), %rax\n ret\n"
    // The forms with a 32-bit offset: AMD processors have no others.
    "far_jump: mov %cs, %eax\n sub $24, %rsp\n mov %eax, 4(%rsp)\n lea 2f(%rip), %rcx\n"
    "mov %ecx, (%rsp)\n ljmp *(%rsp)\n"
    "ud2\n"
    "2: add $24, %rsp\n lea 2(%rdi), %rax\n ret\n"
    "far_call: mov %cs, %eax\n sub $24, %rsp\n mov %eax, 4(%rsp)\n lea 3f(%rip), %rcx\n"
    "mov %ecx, (%rsp)\n lcall *(%rsp)\n"
    "add $24, %rsp\n inc %rax\n ret\n"
    "3: lea 2(%rdi), %rax\n lretl\n"
    "interrupt_return: mov %rsp, %rdx\n mov %ss, %eax\n push %rax\n push %rdx\n pushf\n"
    "mov %cs, %eax\n push %rax\n lea 4f(%rip), %rcx\n push %rcx\n iretq\n"
    "ud2\n"
    "4: lea 4(%rdi), %rax\n ret\n");

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    long sum = 0;
    for (int i = 0; i < 10; i++) sum += far_jump(i) + far_call(i);
    say_number("sum", sum);
    say_number("return", far_return(10));
    say_number("interrupt", interrupt_return(10));
    return 0;
}
