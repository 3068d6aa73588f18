// Waits in the kernel during a signal that is blocked, ignored, or unblocked for the wait alone.
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/sem.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "torture.h"

static int ends[2], epoll, semaphore;
static sigset_t trap, user, none;

// Ends the wait; the last action of a helper.
static void give(void) {
    struct sembuf up = {0, 1, 0};
    kill(getppid(), SIGUSR1);
    semop(semaphore, &up, 1);
    if (write(ends[1], "x", 1) != 1) _exit(9);
    _exit(0);
}

// The first `size` bytes of a file of a thread; false if it may not be read.
static int of_thread(int tid, const char *name, char *text, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", tid, name);
    int file = open(path, O_RDONLY);
    ssize_t read_of_it = file < 0 ? -1 : read(file, text, size - 1);
    if (file >= 0) close(file);
    text[read_of_it < 0 ? 0 : read_of_it] = 0;
    return read_of_it > 0;
}

static int sleeps(int tid) {
    char text[512], *state;
    of_thread(tid, "stat", text, sizeof text);
    state = strrchr(text, ')');
    return state && state[2] == 'S';
}

// The waiting system calls of this program, and those that QEMU uses for them.
static int waits_by(const char *call) {
    static const long those[] = {SYS_epoll_wait, SYS_epoll_pwait, SYS_rt_sigtimedwait, SYS_semop, SYS_semtimedop,
        SYS_recvfrom,
                                 SYS_poll, SYS_ppoll, SYS_rt_sigsuspend, SYS_select, SYS_pselect6, SYS_restart_syscall};
    for (unsigned i = 0; i < sizeof those / sizeof *those; i++)
        if (*call != 'r' && strtol(call, 0, 10) == those[i]) return 1;  // not "running"
    return 0;
}

// Waits until the thread sleeps in one of those calls; QEMU and a recorder sleep in others, too. If the call is not
// visible, waits until the thread has slept for a while.
static void until_it_sleeps(int tid) {
    char before[256], after[256];
    for (int often = 0; often < 5; sleep_ms(3)) {
        int seen = of_thread(tid, "syscall", before, sizeof before), slept = sleeps(tid);
        if (seen && slept && waits_by(before) && of_thread(tid, "syscall", after, sizeof after)
            && !strcmp(before, after)) return;
        often = !seen && slept ? often + 1 : 0;
    }
}

// Forks a process that sends `number` three times during the wait, and then ends the wait.
static void send_meanwhile(int number, int then) {
    int whole = getpid(), one = (int)syscall(SYS_gettid);
    if (fork()) return;
    for (int i = 0; i < 3; i++) {
        until_it_sleeps(one);
        if (i % 2) kill(whole, number);
        else syscall(SYS_tgkill, whole, one, number);
    }
    if (then) until_it_sleeps(one), give();
    _exit(0);
}

static int by_epoll(void) {
    struct epoll_event event;
    return epoll_wait(epoll, &event, 1, 20000);
}

static int by_sigtimedwait(void) {
    struct timespec limit = {20, 0};
    return sigtimedwait(&user, 0, &limit) == SIGUSR1 ? 1 : -1;
}

static int by_semop(void) {
    struct sembuf down = {0, -1, 0};
    return semop(semaphore, &down, 1) == 0 ? 1 : -1;
}

static int by_receive(void) {
    char text;
    return recv(ends[0], &text, 1, MSG_PEEK) == 1 ? 1 : -1;
}

static int by_poll(void) {
    struct pollfd file = {ends[0], POLLIN, 0};
    return poll(&file, 1, 20000);
}

static void prepare(void) {
    struct timeval limit = {20, 0};
    struct epoll_event event = {.events = EPOLLIN};
    sigemptyset(&none);
    sigemptyset(&trap);
    sigaddset(&trap, SIGTRAP);
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    sigprocmask(SIG_BLOCK, &user, 0);
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event);
    semaphore = semget(IPC_PRIVATE, 1, 0600);
}

static void clean_up(void) {
    struct timespec at_once = {0, 0};
    char text;
    recv(ends[0], &text, 1, MSG_DONTWAIT);
    semctl(semaphore, 0, SETVAL, 0);
    sigtimedwait(&user, 0, &at_once);
}

static int (*const WAITS[])(void) = {by_epoll, by_sigtimedwait, by_semop, by_receive, by_poll};
enum { COUNT = sizeof WAITS / sizeof *WAITS };

// The waits must not end early.
static int go_on(int number) {
    prepare();
    for (int i = 0; i < COUNT; i++) {
        send_meanwhile(number, 1);
        int result = WAITS[i]();
        printf("%d %d\n", result, result < 0 ? errno : 0);
        child_status();
        clean_up();
    }
    semctl(semaphore, 0, IPC_RMID);
    return 0;
}

static int waits_and_a_blocked_trap(void) {
    sigset_t pending;
    prepare();
    sigprocmask(SIG_BLOCK, &trap, 0);
    go_on(SIGTRAP);
    sigpending(&pending);
    return printf("%d\n", sigismember(&pending, SIGTRAP)) < 0;
}

static int waits_and_an_ignored_trap(void) {
    signal(SIGTRAP, SIG_IGN);
    return go_on(SIGTRAP);
}

static int waits_and_an_ignored_signal(void) {
    signal(SIGUSR2, SIG_IGN);
    go_on(SIGUSR2);
    return go_on(SIGURG);
}

// A handler runs, so that they end.
static int waits_and_a_signal(void) {
    struct sigaction action = {.sa_handler = count};
    sigaction(SIGUSR2, &action, 0);
    prepare();
    int all = 0;
    for (int i = 0; i < COUNT; i++) {
        send_meanwhile(SIGUSR2, 0);
        for (int often = 0; often < 3; often++) all += WAITS[i]() < 0 && errno == EINTR;
        child_status();
    }
    semctl(semaphore, 0, IPC_RMID);
    return printf("%d %d\n", all, counted) < 0;
}

static int by_sigsuspend(void) {
    return sigsuspend(&none);
}

static int by_ppoll(void) {
    struct timespec limit = {20, 0};
    return ppoll(0, 0, &limit, &none);
}

static int by_pselect(void) {
    struct timespec limit = {20, 0};
    return pselect(0, 0, 0, 0, &limit, &none);
}

static int by_epoll_pwait(void) {
    struct epoll_event event;
    return epoll_pwait(epoll, &event, 1, 20000, &none);
}

// The signal is blocked but while they wait: they end, the handler has run once, and it is blocked again.
static int waits_that_let_a_trap_in(void) {
    static int (*const waits[])(void) = {by_sigsuspend, by_ppoll, by_pselect, by_epoll_pwait};
    signal(SIGTRAP, count);
    prepare();
    sigprocmask(SIG_BLOCK, &trap, 0);
    for (int i = 0; i < 4; i++) {
        int result = (raise(SIGTRAP), work(3), waits[i]());
        printf("%d %d %d\n", result, errno, counted);
        send_meanwhile(SIGTRAP, 0);
        for (int often = 0; often < 3; often++) {
            result = waits[i]();
            sigset_t now;
            sigprocmask(SIG_BLOCK, 0, &now);
            printf("%d %d %d %d\n", result, errno, counted, sigismember(&now, SIGTRAP));
        }
        child_status();
    }
    semctl(semaphore, 0, IPC_RMID);
    return 0;
}

static volatile int alarms, traps;

static void see(int number) {
    if (number == SIGTRAP) traps++;
    else alarms++, work(8);
}

// The timer's signals come while it is blocked, and do not let it through.
static int trap_beside_a_timer(void) {
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    int early = 0, late = 0;
    sigset_t pending;
    prepare();
    signal(SIGALRM, see);
    signal(SIGTRAP, see);
    setitimer(ITIMER_REAL, &often, 0);
    for (int i = 0; i < 10; i++) {
        sigprocmask(SIG_BLOCK, &trap, 0);
        for (int before = alarms; alarms < before + 2;) work(3);
        syscall(SYS_tgkill, getpid(), getpid(), SIGTRAP);
        for (int before = alarms; alarms < before + 2;) work(3);
        sigpending(&pending);
        early += traps != i || !sigismember(&pending, SIGTRAP);
        sigprocmask(SIG_UNBLOCK, &trap, 0);
        late += traps != i + 1;
    }
    setitimer(ITIMER_REAL, &never, 0);
    semctl(semaphore, 0, IPC_RMID);
    return printf("%d %d %d\n", traps, early, late) < 0;
}

MODES(MODE(waits_and_a_blocked_trap), MODE(waits_and_an_ignored_trap), MODE(waits_and_an_ignored_signal),
      MODE(waits_and_a_signal), MODE(waits_that_let_a_trap_in), MODE(trap_beside_a_timer));
MAIN
