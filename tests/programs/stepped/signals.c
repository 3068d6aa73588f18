// Signals of every origin: a timer that is set again and again, faults with a jump out of the handler, traps, nested
// handlers, a call that is restarted, one that is interrupted, an ignored signal, a stack that overflowed.
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static sigjmp_buf out;
static volatile int alarms, nested, traps, children;

static void on_alarm(int signal) { (void)signal; alarms++; }
static void on_usr2(int signal) { (void)signal; nested++; }
static void on_usr1(int signal) { (void)signal; raise(SIGUSR2); }
static void on_trap(int signal) { (void)signal; traps++; }
static void on_child(int signal) { (void)signal; children++; }
static void jump_out(int signal) { siglongjmp(out, signal); }

static void handle(int signal, void (*handler)(int), int flags)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(signal, &action, 0);
}

static int overflow(int depth)
{
    volatile char frame[4096];
    frame[0] = (char)depth;
    return depth > 100000 ? 0 : overflow(depth + 1) + frame[0];
}

// Until the process waits in a call, however long it takes to come there.
static void until_it_sleeps(int pid)
{
    struct timespec pause = {0, 5000000};
    char path[64], text[512], *state;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    do {
        nanosleep(&pause, 0);
        FILE *file = fopen(path, "r");
        size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
        if (file)
            fclose(file);
        text[size] = 0;
        state = strrchr(text, ')');
    } while (state && state[2] != 'S');
}

int main(void)
{
    static char stack[65536];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct itimerval once = {{0, 0}, {0, 300}};
    volatile long sum = 0;
    int fault, pair[2];

    handle(SIGALRM, on_alarm, SA_RESTART);
    while (alarms < 50) {
        int before = alarms;
        setitimer(ITIMER_REAL, &once, 0);
        while (alarms == before)
            sum++;
    }
    printf("timer\n");

    handle(SIGUSR1, on_usr1, 0);
    handle(SIGUSR2, on_usr2, 0);
    raise(SIGUSR1);
    printf("nested %d\n", nested);

    handle(SIGTRAP, on_trap, 0);
    __asm__ volatile("int3");
    __asm__ volatile(".byte 0xcd, 3");
    raise(SIGTRAP);
    printf("traps %d\n", traps);

    sigaltstack(&alternate, 0);
    handle(SIGSEGV, jump_out, SA_ONSTACK | SA_NODEFER);
    handle(SIGFPE, jump_out, 0);
    handle(SIGILL, jump_out, 0);
    handle(SIGBUS, jump_out, 0);
    if ((fault = sigsetjmp(out, 1)) == 0)
        *(volatile int *)8 = 1;
    printf("write %d\n", fault);
    if ((fault = sigsetjmp(out, 1)) == 0)
        ((void (*)(void))16)();
    printf("call %d\n", fault);
    if ((fault = sigsetjmp(out, 1)) == 0)
        __asm__ volatile("ud2");
    printf("ud2 %d\n", fault);
    if ((fault = sigsetjmp(out, 1)) == 0)
        __asm__ volatile("xor %%eax, %%eax; cltd; idiv %%eax" ::: "eax", "edx");
    printf("divide %d\n", fault);
    if ((fault = sigsetjmp(out, 1)) == 0)
        __asm__ volatile("int $0x21");
    printf("int %d\n", fault);
    if ((fault = sigsetjmp(out, 1)) == 0)
        __asm__ volatile("mov $0x8000000000000000, %%rax; jmp *%%rax" ::: "rax");
    printf("not canonical %d\n", fault);
    if ((fault = sigsetjmp(out, 1)) == 0)
        __asm__ volatile("rep movsb" ::"D"(8L), "S"(stack), "c"(100L) : "memory");
    printf("rep %d\n", fault);
    if ((fault = sigsetjmp(out, 1)) == 0)
        overflow(0);
    printf("overflow %d\n", fault);

    // A call that SA_RESTART makes again, and one that it does not.
    alarms = 0;
    if (pipe(pair) != 0)
        return 1;
    if (fork() == 0) {
        struct timespec pause = {0, 20000000};
        nanosleep(&pause, 0);
        kill(getppid(), SIGALRM);
        nanosleep(&pause, 0);
        if (write(pair[1], "x", 1) != 1)
            _exit(1);
        _exit(3);
    }
    char letter = 0;
    ssize_t got = read(pair[0], &letter, 1);
    printf("read %zd %c %d\n", got, letter, alarms);
    int status;
    waitpid(-1, &status, 0);
    printf("child %d\n", WEXITSTATUS(status));

    handle(SIGUSR1, SIG_IGN, 0);
    handle(SIGCHLD, on_child, 0);
    if (fork() == 0) {
        int parent = getppid();
        until_it_sleeps(parent);
        kill(parent, SIGUSR1);
        kill(parent, SIGWINCH);
        until_it_sleeps(parent);
        _exit(0);
    }
    struct timespec long_time = {20, 0};
    int result = nanosleep(&long_time, 0);
    printf("sleep %d %d\n", result, errno == EINTR);
    while (!children)
        ;
    printf("children %d\n", children);
    return 0;
}
