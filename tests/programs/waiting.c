// One thread waits in each of many system calls. A line of input wakes them all; each then says how its call ended.
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { READ, POLL, SELECT, EPOLL, EPOLL_LIMIT, FUTEX, SIGWAIT, NANOSLEEP, RECEIVE, KINDS };

static const char *const names[KINDS] = {
    "read",  "poll",    "select",    "epoll",  "epoll with a limit",
    "futex", "sigwait", "nanosleep", "receive"};
static int pipes[KINDS][2], polls[KINDS];
static uint32_t word;
static long results[KINDS];
static int errors[KINDS];

static long wait_in(long kind) {
    int in = pipes[kind][0];
    struct pollfd one = {.fd = in, .events = POLLIN};
    struct timespec while_ = {2, 0};
    struct epoll_event found;
    sigset_t usr1;
    char byte;
    fd_set set;
    switch (kind) {
    case READ: return read(in, &byte, 1);
    case POLL: return poll(&one, 1, 100000);
    case SELECT: FD_ZERO(&set); FD_SET(in, &set); return select(in + 1, &set, 0, 0, 0);
    case EPOLL: return epoll_wait(polls[kind], &found, 1, -1);
    case EPOLL_LIMIT: return epoll_wait(polls[kind], &found, 1, 100000);
    case FUTEX:
        // Woken, or late: the word has changed already.
        return syscall(SYS_futex, &word, FUTEX_WAIT, 0, 0, 0, 0) && errno != EAGAIN ? -1 : 0;
    case SIGWAIT: sigemptyset(&usr1); sigaddset(&usr1, SIGUSR1); return sigwaitinfo(&usr1, 0);
    case NANOSLEEP: return nanosleep(&while_, &while_);
    case RECEIVE: return recv(in, &byte, 1, 0);
    }
    return -1;
}

static void *wait_thread(void *kind) {
    results[(long)kind] = wait_in((long)kind);
    errors[(long)kind] = results[(long)kind] < 0 ? errno : 0;
    return 0;
}

int main(void) {
    pthread_t threads[KINDS];
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, 0);
    for (long kind = 0; kind < KINDS; kind++) {
        struct epoll_event wanted = {.events = EPOLLIN};
        if (kind == RECEIVE ? socketpair(AF_UNIX, SOCK_STREAM, 0, pipes[kind]) : pipe(pipes[kind])) return 2;
        polls[kind] = epoll_create1(0);
        epoll_ctl(polls[kind], EPOLL_CTL_ADD, pipes[kind][0], &wanted);
        pthread_create(&threads[kind], 0, wait_thread, (void *)kind);
    }
    puts("running");
    fflush(stdout);
    char byte;
    long got = read(0, &byte, 1);
    for (long kind = 0; kind < KINDS; kind++) {
        if (write(pipes[kind][1], "x", 1) != 1) return 2;
    }
    word = 1;
    syscall(SYS_futex, &word, FUTEX_WAKE, 1, 0, 0, 0);
    kill(getpid(), SIGUSR1);
    for (long kind = 0; kind < KINDS; kind++) {
        pthread_join(threads[kind], 0);
        printf("%s: %ld, error %d\n", names[kind], results[kind], errors[kind]);
    }
    printf("input: %ld\n", got);
    return 0;
}
