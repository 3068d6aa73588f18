// A process changes its own environment: files, limits, names, namespaces, system call filters.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "torture.h"

static int closes_all(void) {
    for (int i = 0; i < 1024; i++) close(i);
    syscall(SYS_close_range, 3, ~0u, 0);
    counted = work(8);
    int first = open("/dev/null", O_WRONLY), second = open("/dev/null", O_WRONLY);
    if (!fork()) _exit(work(5) & 0);
    return child_status() == 0 && first == 0 && second == 1 ? 5 : 6;
}

static int over_all_files(void) {
    int file = open("/dev/null", O_RDWR);
    for (int i = 3; i < 1000; i++)
        if (i != file) dup2(file, i);
    counted = work(8);
    if (!fork()) _exit(4);
    printf("%d\n", child_status());
    return 0;
}

// No file is open at any of these numbers.
static int uses_all_numbers(void) {
    char name[4] = "";
    int found = 0;
    for (int i = 3; i < 2100; i++) {
        found += write(i, "no message", 10) != -1 || errno != EBADF;
        found += sendto(i, "no message", 10, 0, 0, 0) != -1 || errno != EBADF;
        found += fcntl(i, F_GETFD) != -1 || errno != EBADF;
        found += read(i, name, sizeof name) != -1 || errno != EBADF;
        found += dup2(i, 2500) != -1 || errno != EBADF;
        found += mmap(0, PAGE, PROT_READ, MAP_PRIVATE, i, 0) != MAP_FAILED || errno != EBADF;
    }
    counted = work(8);
    if (!fork()) {
        for (int i = 2099; i >= 3; i--) found += write(i, "no message", 10) != -1 || errno != EBADF;
        _exit(found != 0);
    }
    printf("%d %d\n", found, child_status());
    return 0;
}

static int no_bytes_in_files(void) {
    limit(RLIMIT_FSIZE, 0);
    signal(SIGXFSZ, SIG_IGN);
    counted = work(10);
    if (!fork()) _exit(work(8) & 0);
    return child_status() == 0 ? 4 : 1;
}

static int no_more_files(void) {
    limit(RLIMIT_NOFILE, 3);
    int refused = open("/dev/null", O_RDONLY) < 0;
    if (!fork()) {
        execl("/bin/true", "true", (char *)0);
        _exit(1);
    }
    child_status();
    printf("%d\n", refused);
    return 0;
}

static int no_more_memory(void) {
    limit(RLIMIT_AS, 48 << 20);
    void *volatile none = malloc(100 << 20);
    counted = work(8);
    printf("%d\n", none == 0);
    return 0;
}

static int low_limits(void) {
    struct rlimit seconds = {10, 11};
    limit(RLIMIT_NPROC, 1);
    limit(RLIMIT_STACK, 65536);
    limit(RLIMIT_MEMLOCK, 0);
    limit(RLIMIT_CORE, 0);
    setrlimit(RLIMIT_CPU, &seconds);
    return work(8) == 21 ? 6 : 1;
}

static int undumpable(void) {
    uint8_t *code = pages(ALL);
    prctl(PR_SET_DUMPABLE, 0);
    put_odd(code, 3);
    printf("%d %d\n", call(code, 2), work(6));
    return 0;
}

static int strange_names(void) {
    prctl(PR_SET_NAME, "\x1b[31m\n\xff x");
    counted = work(6);
    prctl(PR_SET_NAME, "");
    counted = work(4);
    puts("named");
    return 0;
}

static int own_namespaces(void) {
    int made = unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC) == 0;
    if (!fork()) {
        int own = getpid();
        counted = work(6);
        if (!fork()) _exit(getpid() == 2 ? 2 : 8);
        _exit(own == 1 ? child_status() : 9);
    }
    int status = child_status();
    printf("%d\n", made ? status : 2);
    return 0;
}

static int own_users(void) {
    int made = unshare(CLONE_NEWUSER) == 0;
    counted = work(5);
    if (!fork()) _exit(work(6) == 8);
    printf("%d\n", made ? child_status() : 1);
    return 0;
}

// Code that no file contains.
static int in_a_child(void) {
    if (!fork()) {
        uint8_t *code = pages(ALL);
        put_odd(code, 3);
        _exit(call(code, 2) + work(6));
    }
    return child_status();
}

// Removes everything that a recorder might open.
static int another_root(void) {
    mkdir("empty", 0755);
    int made = chroot("empty") == 0 && chdir("/") == 0;
    counted = work(6);
    printf("%d %d\n", made, in_a_child());
    return 0;
}

// Runs as user `nobody`, without access to the files of the recording user.
static int another_user(void) {
    int made = setgid(65534) == 0 && setuid(65534) == 0;
    counted = work(6);
    printf("%d %d\n", made, in_a_child());
    return 0;
}

static int strict_calls(void) {
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    char text[] = "a\n";
    text[0] += work(8) % 20;
    syscall(SYS_write, 1, text, 2);
    syscall(SYS_exit, 3);
    return 1;
}

// getppid is answered by `action`, everything else is allowed.
static void filter(uint32_t action) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, rules};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int filtered_calls(void) {
    filter(SECCOMP_RET_ERRNO | ENOSYS);
    long result = syscall(SYS_getppid);
    printf("%d %d\n", result < 0 && errno == ENOSYS, work(7));
    return 0;
}

static int killed_by_a_filter(void) {
    filter(SECCOMP_RET_KILL_PROCESS);
    counted = work(7);
    syscall(SYS_getppid);
    return 0;
}

static int told_by_a_filter(void) {
    signal(SIGSYS, count);
    filter(SECCOMP_RET_TRAP);
    syscall(SYS_getppid);
    counted += work(7);
    printf("%d\n", counted);
    return 0;
}

MODES(MODE(closes_all), MODE(over_all_files), MODE(uses_all_numbers), MODE(no_bytes_in_files), MODE(no_more_files),
      MODE(no_more_memory), MODE(low_limits), MODE(undumpable), MODE(strange_names), MODE(own_namespaces),
      MODE(own_users), MODE(another_root), MODE(another_user), MODE(strict_calls), MODE(filtered_calls),
      MODE(killed_by_a_filter), MODE(told_by_a_filter));
MAIN
