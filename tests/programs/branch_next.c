// Conditional branches whose target is the instruction that follows them: taken or not, the same comes next.
#include "start.h"

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    __asm__ volatile(
        "xor %%eax, %%eax\n"           // ZF and PF, no CF, SF, OF
        ".byte 0x74, 0\n"             // jz: taken
        ".byte 0x75, 0\n"             // jnz
        ".byte 0x72, 0\n"             // jc
        ".byte 0x0f, 0x83, 0, 0, 0, 0\n" // jnc: taken
        ".byte 0x7a, 0\n"             // jp: taken
        ".byte 0x7f, 0\n"             // jg
        ".byte 0x3e, 0x7e, 0\n"       // jle: taken
        "mov $2, %%ecx\n"
        ".byte 0xe2, 0\n"             // loop: taken, 1 is left
        ".byte 0xe3, 0\n"             // jrcxz
        ".byte 0xe2, 0\n"             // loop: 0 is left
        ".byte 0xe3, 0\n"             // jrcxz: taken
        "mov $0x100000000, %%rcx\n"
        ".byte 0xe3, 0\n"             // jrcxz
        ".byte 0x67, 0xe3, 0\n"       // jecxz: taken
        "cmp $1, %%eax\n"             // 0 - 1: CF, SF, no OF, no ZF
        ".byte 0x7c, 0\n"             // jl: taken
        ".byte 0x79, 0\n"             // jns
        ".byte 0x77, 0\n"             // ja
        ".byte 0xe1, 0\n"             // loope
        ".byte 0xe0, 0\n"             // loopne: taken
        : : : "rax", "rcx", "cc");
    say("done\n");
    return 0;
}
