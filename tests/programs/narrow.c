// Far jumps from 64-bit to 32-bit code and back; the same bytes are other instructions in the other mode. A signal
// arrives in 32-bit code, too.
#include "start.h"

long in_narrow(long), in_wide(long);

__asm__(
    // inc eax, dec ecx: prefixes of 64-bit instructions
    // An interrupt there keeps 32 bits of the stack pointer.
    "in_narrow: mov %rsp, wide_stack(%rip)\n lea low_stack + 32768(%rip), %rsp\n"
    "mov %edi, %ecx\n xor %eax, %eax\n ljmpl *to_narrow(%rip)\n"
    ".code32\n"
    "narrow: inc %eax\n dec %ecx\n jnz narrow\n int3\n ljmp $0x33, $back\n"
    ".code64\n"
    "back: mov wide_stack(%rip), %rsp\n ret\n"
    // the same bytes
    "in_wide: mov %edi, %ecx\n xor %eax, %eax\n"
    "1: .byte 0x40, 0x49, 0xff, 0xc9\n inc %eax\n cmp %edi, %eax\n jb 1b\n ret\n"
    ".data\n"
    ".comm low_stack, 32768, 16\n .comm wide_stack, 8, 8\n"
    "to_narrow: .long narrow\n .word 0x23\n"
    ".text\n");

static volatile int traps;

static void on_trap(int number) { traps += number == SIGTRAP; }

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    on_signal(SIGTRAP, on_trap, 0);
    long sum = 0;
    for (int i = 1; i <= 10; i++) sum += in_narrow(i) + in_wide(i);
    say_number("sum", sum);
    say_number("traps", traps);
    return 0;
}
