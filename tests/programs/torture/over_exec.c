// Pending and ignored signals over an exec, and fault signals sent by another process while they are blocked.
#include <pthread.h>
#include <sched.h>

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

// The fault signal is sent by a process, not raised by an instruction.
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

// The fault signals are sent to the process, and stay pending until they are unblocked.
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
        while (counted < before + 2) sched_yield(); // POSIX promises that one of them comes at once
        printf("%d %d\n", before, counted);
        sigprocmask(SIG_BLOCK, &faults, 0);
    }
    return 0;
}

static volatile pid_t took_it;
static volatile int asked, answered;

static void take(int number) {
    (void)number;
    took_it = syscall(SYS_gettid);
}

static void change(int how, int number) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    pthread_sigmask(how, &one, 0);
}

// Blocks the requested signal, or unblocks it if the number is negative.
static void *answer(void *unused) {
    for (;;) {
        while (answered == asked) sched_yield();
        int number = asked;
        if (number == 0) return unused;
        change(number > 0 ? SIG_BLOCK : SIG_UNBLOCK, abs(number));
        answered = number;
    }
}

static void ask(int number) {
    asked = number;
    while (answered != number) sched_yield();
}

static const char *who(void) {
    for (int i = 0; i < 500 && took_it == 0; i++) sleep_ms(1);
    const char *found = took_it == 0 ? "nobody" : took_it == getpid() ? "first" : "other";
    took_it = 0;
    return found;
}

// The fault signals are sent to the process: a thread that does not block them takes them, else one that unblocks them.
static void faults_of(int number) {
    signal(number, take);
    kill(getpid(), number);
    printf("%d\n", strcmp(who(), "nobody") != 0);
    change(SIG_BLOCK, number);
    kill(getpid(), number);
    printf("%s\n", who());
    ask(number);
    kill(getpid(), number);
    ask(-number);
    printf("%s\n", who());
    ask(number);
    kill(getpid(), number);
    change(SIG_UNBLOCK, number);
    printf("%s\n", who());
    ask(-number);
}

static int faults_among_threads(void) {
    pthread_t thread;
    pthread_create(&thread, 0, answer, 0);
    for (int i = 0; i < 3; i++) faults_of(SIGILL), faults_of(SIGFPE);
    asked = 0;
    return pthread_join(thread, 0);
}

// Of the real-time signals, all but the last two, which QEMU does not have.
static void each_real_time(void (*what)(int)) {
    for (int number = SIGRTMIN; number <= SIGRTMAX - 2; number++) what(number);
}

static unsigned long ignored;

static void look(int number) {
    struct sigaction now;
    sigaction(number, 0, &now);
    if (now.sa_handler == SIG_IGN) ignored |= 1UL << (number - 1);
}

static void ignore_some(int number) {
    if (number % 3 == 0) signal(number, SIG_IGN);
    if (number % 5 == 0) signal(number, count);
    if (number % 7 == 0) signal(number, SIG_DFL);
}

static void send_what_is_ignored(int number) {
    struct sigaction now;
    sigaction(number, 0, &now);
    if (now.sa_handler == SIG_IGN) kill(getpid(), number);
}

// Which are ignored, in the first program and the three after it; each ignores some more, and some no longer.
static int real_time_over_execs(void) {
    char execs[] = {arguments[2] ? arguments[2][0] + 1 : '0', 0};
    each_real_time(look);
    printf("%lx\n", ignored);
    if (!arguments[2]) each_real_time(ignore_some);
    if (execs[0] == '2') {
        signal(SIGRTMIN + 5, SIG_DFL);
        signal(SIGRTMIN + 3, SIG_IGN);
        sigaction(SIGRTMIN + 8, &(struct sigaction){.sa_handler = count}, 0);
    }
    each_real_time(send_what_is_ignored);
    return execs[0] < '3' ? execl("/proc/self/exe", arguments[0], arguments[1], execs, (char *)0) : 0;
}

// Has a handler for a while, and none at the end.
static int real_time_by_default(void) {
    signal(SIGRTMIN + 2, count);
    raise(SIGRTMIN + 2);
    signal(SIGRTMIN + 2, SIG_IGN);
    raise(SIGRTMIN + 2);
    signal(SIGRTMIN + 2, SIG_DFL);
    printf("%d\n", counted);
    if (fork() == 0) return work(12), raise(SIGRTMIN + 2);
    printf("%d\n", child_status() == -(SIGRTMIN + 2));
    return work(12), raise(SIGRTMIN + 2);
}

static int told[2], go_on[2];

static void tell(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    if (write(told[1], &info->si_value.sival_int, sizeof(int)) < 0) _exit(3);
}

// QEMU has no numbers left for them.
static int last_signals(void) {
    for (int number = SIGRTMAX - 1; number <= SIGRTMAX; number++) {
        signal(number, count);
        printf("%d %d\n", raise(number), counted);
    }
    return 0;
}

// A child that executes itself while a signal is sent: its handler runs, or the signal kills it. After the exec no
// signal is blocked.
static int child_of_exec(int number) {
    char end[12];
    struct sigaction action = {.sa_sigaction = tell, .sa_flags = SA_SIGINFO};
    close(go_on[1]);
    snprintf(end, sizeof end, "%d", go_on[0]);
    sigaction(number, &action, 0);
    if (write(told[1], &number, sizeof number) < 0) return 1;
    return execl("/proc/self/exe", arguments[0], arguments[1], end, (char *)0);
}

static int after_exec(void) {
    char byte;
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, 0, &blocked);
    while (read(atoi(arguments[2]), &byte, 1) != 0) continue;
    for (int number = 1; number <= SIGRTMAX; number++)
        if (sigismember(&blocked, number) > 0) return 1;
    return 0;
}

static int while_it_executes(int round) {
    int number = SIGRTMIN + 1 + round % 9, begun = 0, value = 0, handled;
    if (pipe(told) || pipe(go_on)) return 1;
    fcntl(told[1], F_SETFD, FD_CLOEXEC);
    pid_t child = fork();
    if (child == 0) _exit(child_of_exec(number));
    close(told[1]), close(go_on[0]);
    while (read(told[0], &begun, sizeof begun) < 0) continue;
    nanosleep(&(struct timespec){0, round * 300000L}, 0);
    sigqueue(child, number, (union sigval){.sival_int = round});
    close(go_on[1]);
    handled = read(told[0], &value, sizeof value) > 0;
    int status = child_status();
    close(told[0]);
    return begun != number || status != (handled ? 0 : -number) || (handled && value != round);
}

// None is lost, and none leaves anything blocked.
static int real_time_while_in_exec(void) {
    int wrong = 0;
    if (arguments[2]) return after_exec();
    for (int round = 0; round < 40; round++) wrong += while_it_executes(round);
    printf("%d\n", wrong);
    return 0;
}

static volatile int is_changing, changed;

static void *changes(void *number) {
    for (int i = 0; is_changing; changed = i++) signal(*(int *)number, i % 2 ? count : SIG_IGN);
    return 0;
}

// Two threads each ignore a signal and handle it again, at the same time; the program after an exec ignores neither.
static int actions_at_once(void) {
    int number = SIGRTMIN + 20, others = SIGRTMIN + 9, wrong = 0;
    if (arguments[2]) return look(number), ignored != 0;
    for (int round = 0; round < 60; round++) {
        pthread_t other;
        is_changing = 1, changed = 0;
        pthread_create(&other, 0, changes, &others);
        while (changed < 10) sched_yield();
        for (int i = 0; i < 20; i++) signal(number, i % 2 ? count : SIG_IGN);
        is_changing = 0;
        pthread_join(other, 0);
        if (fork() == 0) _exit(execl("/proc/self/exe", arguments[0], arguments[1], "again", (char *)0));
        wrong += child_status() != 0;
    }
    printf("%d\n", wrong);
    return 0;
}

// Actions that the kernel refuses change nothing.
static int refused_actions(void) {
    if (!arguments[2]) {
        struct { void (*handler)(int); unsigned long flags; void *restorer; unsigned long mask; } ignore =
            {SIG_IGN, 0, 0, 0};
        long refused = 0;
        refused += syscall(SYS_rt_sigaction, SIGUSR1, &ignore, 0, 4) < 0;
        refused += syscall(SYS_rt_sigaction, SIGUSR2, &ignore, 8, 8) < 0 && errno == EFAULT;
        refused += syscall(SYS_rt_sigaction, SIGKILL, &ignore, 0, 8) < 0;
        printf("%ld\n", refused);
        return execl("/proc/self/exe", arguments[0], arguments[1], "again", (char *)0);
    }
    if (fork() == 0) return kill(getpid(), SIGUSR1);
    printf("%d\n", child_status());
    return 0;
}

// A program for another machine: the kernel rejects it, and the caller continues; pending signals may kill it.
static int foreign_program(void) {
    char head[64] = {0x7f, 'E', 'L', 'F', 2, 1, 1, 0, [16] = 2, [18] = 40, [20] = 1};
    char *words[] = {"./foreign", 0};
    int file = open(words[0], O_CREAT | O_WRONLY, 0755);
    if (write(file, head, sizeof head) != sizeof head || close(file)) return 1;
    for (int i = 0; i < 2; i++) {
        execv(words[0], words);
        printf("%d\n", errno);
    }
    if (arguments[2]) kill(getpid(), SIGKILL);
    return work(12) & 127;
}

MODES(MODE(queued_before_exec), MODE(fault_before_exec), MODE(ignored_over_execs), MODE(faults_that_wait),
      MODE(real_time_over_execs), MODE(real_time_by_default), MODE(real_time_while_in_exec), MODE(refused_actions),
      MODE(foreign_program), MODE(faults_among_threads), MODE(last_signals), MODE(actions_at_once));
MAIN
