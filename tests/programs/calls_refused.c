// SIGTRAP is ignored, and system calls are blocked (PR_SET_SYSCALL_USER_DISPATCH) until SIGUSR1 arrives. The recorder
// must make no other call, since SIGSYS would be counted.
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

enum { ALLOW, BLOCK };
static volatile char selector;
static volatile int refused, woken;

static void on_sys(int number) {
    selector = ALLOW;
    refused += number == SIGSYS;
}

static void on_usr1(int number) {
    selector = ALLOW;
    woken = number == SIGUSR1;
}

int main(void) {
    char byte;
    signal(SIGTRAP, SIG_IGN);
    signal(SIGSYS, on_sys);
    signal(SIGUSR1, on_usr1);
    int on = prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &selector) == 0;
    puts("running");
    fflush(stdout);
    selector = BLOCK;
    while (!woken) continue;
    long got = read(0, &byte, 1);
    printf("on %d, input %ld, refused %d\n", on, got, refused);
    return 0;
}
