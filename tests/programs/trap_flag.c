// A program must not see that it is single-stepped: TF in a pushed image, and in R11 after SYSCALL.
#include "start.h"

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    long pushed, saved, call = __NR_getpid;
    __asm__ volatile("pushf\n pop %0" : "=r"(pushed));
    __asm__ volatile("syscall\n mov %%r11, %1" : "+a"(call), "=r"(saved) : : "rcx", "r11", "memory");
    say_number("pushed", pushed >> 8 & 1);
    say_number("saved", saved >> 8 & 1);
    __asm__ volatile("pushf\n popf" : : : "cc", "memory");
    __asm__ volatile("pushf\n pop %0" : "=r"(pushed));
    say_number("after", pushed >> 8 & 1);
    return 0;
}
