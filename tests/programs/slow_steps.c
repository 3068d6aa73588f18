// SIGTRAP is ignored, by instructions that take long, by far in virtual machines: who stops the program for good does
// so in the midst of a step. It goes on until it gets a line of input.
#include <poll.h>
#include <signal.h>
#include <stdio.h>

int main(void) {
    struct sigaction now;
    signal(SIGTRAP, SIG_IGN);
    puts("running");
    fflush(stdout);
    do __asm__ volatile(".rept 256; cpuid; .endr" ::: "eax", "ebx", "ecx", "edx");
    while (!poll(&(struct pollfd){.fd = 0, .events = POLLIN}, 1, 0));
    sigaction(SIGTRAP, 0, &now);
    printf("ignored %d\n", now.sa_handler == SIG_IGN);
    return 0;
}
