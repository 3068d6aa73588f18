// Signals that wait, or are ignored, over an exec; and faults that somebody sends while they are blocked.
#include "torture.h"

static sigset_t everything;

// Executes itself once more, where `again` is true.
static int once_more(int *again) {
    sigfillset(&everything);
    *again = arguments[2] != 0;
    if (*again) return 0;
    char *words[] = {arguments[0], arguments[1], "again", 0};
    return execv("/proc/self/exe", words);
}

static int what_waits(void) {
    struct timespec at_once = {0, 0};
    siginfo_t info;
    for (int number; (number = sigtimedwait(&everything, &info, &at_once)) > 0;)
        printf("%d %d\n", number < 32 ? number : 0, info.si_code == SI_QUEUE ? info.si_value.sival_int : 0);
    return 0;
}

// Signals that wait over an exec, sent right before it: real-time ones are counted, and bring values.
static int queued_before_exec(void) {
    int again;
    if (!arguments[2]) {
        sigfillset(&everything);
        sigprocmask(SIG_BLOCK, &everything, 0);
        for (int i = 0; i < 5; i++) sigqueue(getpid(), SIGRTMIN + 2 + i % 2, (union sigval){.sival_int = 10 + i});
        kill(getpid(), SIGUSR1);
        kill(getpid(), SIGUSR1);
        syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR2);
    }
    if (once_more(&again) || !again) return 1;
    return what_waits();
}

// As somebody sends it, not as an instruction has it.
static int fault_before_exec(void) {
    int again;
    if (!arguments[2]) {
        sigfillset(&everything);
        sigprocmask(SIG_BLOCK, &everything, 0);
        kill(getpid(), SIGSEGV);
        kill(getpid(), SIGBUS);
    }
    if (once_more(&again) || !again) return 1;
    return what_waits();
}

static const int FAULTS_AND_OTHERS[] = {SIGHUP, SIGUSR1, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
enum { COUNT = sizeof FAULTS_AND_OTHERS / sizeof *FAULTS_AND_OTHERS };

// Ignored in the first program, still in the third; each is sent in all of them.
static int ignored_over_execs(void) {
    char execs[] = {arguments[2] ? arguments[2][0] + 1 : '0', 0};
    for (int i = 0; i < COUNT; i++) {
        struct sigaction now;
        if (!arguments[2]) signal(FAULTS_AND_OTHERS[i], SIG_IGN);
        kill(getpid(), FAULTS_AND_OTHERS[i]);
        sigaction(FAULTS_AND_OTHERS[i], 0, &now);
        counted += now.sa_handler == SIG_IGN;
    }
    printf("%d\n", counted);
    return execs[0] < '2' ? execl("/proc/self/exe", arguments[0], arguments[1], execs, (char *)0) : 0;
}

// As somebody sends them to the process; they wait until they are let in.
static int faults_that_wait(void) {
    sigset_t faults, pending;
    sigemptyset(&faults);
    sigaddset(&faults, SIGILL);
    sigaddset(&faults, SIGFPE);
    sigprocmask(SIG_BLOCK, &faults, 0);
    signal(SIGILL, count);
    signal(SIGFPE, count);
    for (int i = 0; i < 5; i++) {
        kill(getpid(), SIGILL);
        kill(getpid(), SIGFPE);
        while (sigpending(&pending), !sigismember(&pending, SIGILL) || !sigismember(&pending, SIGFPE)) continue;
        int before = counted;
        sigprocmask(SIG_UNBLOCK, &faults, 0);
        printf("%d %d\n", before, counted);
        sigprocmask(SIG_BLOCK, &faults, 0);
    }
    return 0;
}

MODES(MODE(queued_before_exec), MODE(fault_before_exec), MODE(ignored_over_execs), MODE(faults_that_wait));
MAIN
