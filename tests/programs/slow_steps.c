// SIGTRAP is ignored, during instructions that take long, above all in virtual machines: a tracer that detaches does so
// within a step. The program runs until it gets a line of input.
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
