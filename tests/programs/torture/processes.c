// Processes and threads: many at once, sudden ends, exec, orphans.
#include <pthread.h>
#include <sched.h>
#include <sys/ptrace.h>

#include "torture.h"

extern char **environ;

static void *turn_for_ever(void *unused) {
    for (;;) counted = work(4);
    return unused;
}

static void start_turning(int threads) {
    for (pthread_t thread; threads > 0; threads--) pthread_create(&thread, 0, turn_for_ever, 0);
}

static int family(void) {
    int sum = 0, status;
    for (int i = 0; i < 6; i++) {
        if (fork()) continue;
        int own = 0;
        for (int j = 0; j < 12; j++) {
            if (!fork()) {
                counted = work(3);
                _exit(j & 3);
            }
            own += child_status();
        }
        _exit(own);
    }
    while ((status = child_status()) >= 0) sum += status;
    printf("%d\n", sum);
    return 0;
}

static int many_at_once(void) {
    int ends[2], sum = 0, status;
    char byte;
    if (pipe(ends)) return 1;
    for (int i = 0; i < 100; i++) {
        if (fork()) continue;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) ? 77 : i & 3);
    }
    close(ends[1]);
    while ((status = child_status()) >= 0) sum += status;
    printf("%d\n", sum);
    return 0;
}

static pthread_barrier_t barrier;

static void *meet(void *number) {
    pthread_barrier_wait(&barrier);
    counted = work((int)(intptr_t)number % 5);
    return number;
}

static int many_threads(void) {
    enum { COUNT = 200 };
    static pthread_t all[COUNT];
    intptr_t sum = 0;
    void *result;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    pthread_barrier_init(&barrier, 0, COUNT);
    for (intptr_t i = 0; i < COUNT; i++)
        if (pthread_create(&all[i], &small, meet, (void *)i)) return 1;
    for (int i = 0; i < COUNT; i++) pthread_join(all[i], &result), sum += (intptr_t)result;
    printf("%d\n", (int)sum);
    return 0;
}

static int vfork_without_exec(void) {
    volatile int wrong = 0;
    for (volatile int i = 0; i < 20; i++) {
        if (!vfork()) {
            execl("/no such file", "x", (char *)0);
            execl("/etc/passwd", "x", (char *)0);
            _exit(errno == EACCES ? 3 : 4);
        }
        wrong += child_status() != 3;
    }
    printf("%d\n", wrong);
    return 0;
}

// All of the process group die at once: threads and a child in the midst of their code.
static int group_killed(void) {
    setpgid(0, 0);
    start_turning(4);
    if (!fork()) turn_for_ever(0);
    sleep_ms(300);
    kill(0, SIGKILL);
    return 1;
}

static int exit_among_threads(void) {
    start_turning(12);
    sleep_ms(10);
    _exit(7);
}

static void *end_later(void *unused) {
    sleep_ms(20);
    counted = work(6);
    exit(8);
    return unused;
}

static int first_thread_ends_first(void) {
    pthread_t thread;
    pthread_create(&thread, 0, end_later, 0);
    pthread_exit(0);
}

static int forks_among_threads(void) {
    start_turning(3);
    int sum = 0;
    for (int i = 0; i < 5; i++) {
        if (!fork()) {
            counted = work(6);
            _exit(i);
        }
        sum += child_status();
    }
    printf("%d\n", sum);
    _exit(2);
}

static int exec_again(void) {
    int left = arguments[2] ? atoi(arguments[2]) : 25;
    if (!left) return puts("last") < 0;
    char text[12];
    snprintf(text, sizeof text, "%d", left - 1);
    execl(arguments[0], arguments[0], "exec_again", text, (char *)0);
    return 1;
}

// With many words, so that an exec takes its time.
static int runs_itself(void) {
    static char *words[4000];
    for (int i = 0; i < 3999; i++) words[i] = "word";
    words[0] = arguments[0], words[1] = "runs_itself";
    execv(words[0], words);
    return 1;
}

// A signal at a random moment of an exec, also between the old and the new program.
static int killed_in_exec(void) {
    enum { COUNT = 12 };
    pid_t all[COUNT];
    int left = 4000;
    for (int i = 0; i < COUNT; i++)
        if (!(all[i] = fork())) return runs_itself();
    sleep_ms(300);
    for (int i = 0; i < COUNT; i++) kill(all[i], SIGTERM), sleep_ms(7);
    for (int i = 0; i < COUNT; i++) {
        int status = 0;
        while (waitpid(all[i], &status, WNOHANG) == 0 && left-- > 0) sleep_ms(2);
        counted += WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
        if (!status) kill(all[i], SIGKILL);
    }
    printf("%d\n", counted);
    return 0;
}

static void *exec_now(void *unused) {
    execl("/bin/echo", "echo", "from a thread", (char *)0);
    return unused;
}

static int exec_among_threads(void) {
    pthread_t thread;
    start_turning(3);
    pthread_create(&thread, 0, exec_now, 0);
    pthread_join(thread, 0);
    return 1;
}

static int exec_from_memory(void) {
    static char bytes[PAGE];
    char *words[] = {"echo", "from memory", 0};
    int from = open("/bin/echo", O_RDONLY), to = memfd_create("program", 0);
    for (ssize_t size; (size = read(from, bytes, sizeof bytes)) > 0;)
        if (write(to, bytes, size) != size) return 1;
    fexecve(to, words, environ);
    return 1;
}

static int large_environment(void) {
    static char text[90000];
    memset(text, 'e', sizeof text - 1);
    char *words[] = {"echo", "large", 0}, *all[] = {text, 0};
    execve("/bin/echo", words, all);
    return 1;
}

static int orphans(void) {
    for (int i = 0; i < 4; i++) {
        if (fork()) continue;
        sleep_ms(100);
        counted = work(6);
        _exit(0);
    }
    return 3;
}

// A daemon: a session of its own, no open files, no parent that waits.
static int daemonised(void) {
    if (fork()) return child_status() + 4;
    setsid();
    if (fork()) _exit(0);
    if (chdir("/")) _exit(1);
    for (int i = 0; i < 1024; i++) close(i);
    sleep_ms(200);
    counted = work(8);
    _exit(open("/dev/null", O_WRONLY));
}

static int any_child(void) {
    int sum = 0, status;
    for (int i = 0; i < 10; i++)
        if (!fork()) _exit(i);
    while (waitpid(-1, &status, __WALL) > 0) sum += WEXITSTATUS(status);
    printf("%d\n", sum);
    return 0;
}

static int in_shared_memory(void *number) {
    counted = work(5);
    ++*(int *)number;
    return 3;
}

static int cloned(const int *flags, int size) {
    static char stacks[4][65536];
    int number = 0;
    for (int i = 0; i < size; i++) {
        int child = clone(in_shared_memory, stacks[i] + sizeof stacks[i], flags[i], &number);
        waitpid(child, 0, 0);
    }
    printf("%d\n", number);
    return 0;
}

static int clone_vfork(void) {
    const int flags[] = {SIGCHLD, CLONE_VM | CLONE_VFORK | SIGCHLD};
    return cloned(flags, 2);
}

static int clone_vm(void) {
    const int flags[] = {CLONE_VM | SIGCHLD, CLONE_VM | CLONE_FILES | CLONE_FS | SIGCHLD};
    return cloned(flags, 2);
}

// Requests that fail under a ptrace recorder; the program prints so and continues.
static int wants_a_tracer(void) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    counted = work(6);
    puts("goes on");
    return 0;
}

// A process that cannot be.
static int asks_to_trace(void) {
    long result = ptrace(PTRACE_ATTACH, 0x7fffffff, 0, 0);
    printf("%ld %d\n", result, errno);
    return 0;
}

static int stopped_and_continued(void) {
    int parent = getpid();
    if (!fork()) {
        for (int i = 0; i < 3; i++) sleep_ms(20), kill(parent, SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
    counted = work(6);
    printf("%d\n", child_status());
    return 0;
}

MODES(MODE(family), MODE(many_at_once), MODE(many_threads), MODE(vfork_without_exec), MODE(group_killed),
      MODE(exit_among_threads), MODE(first_thread_ends_first), MODE(forks_among_threads), MODE(exec_again),
      MODE(runs_itself), MODE(killed_in_exec), MODE(exec_among_threads), MODE(exec_from_memory),
      MODE(large_environment), MODE(orphans), MODE(daemonised), MODE(any_child), MODE(clone_vfork), MODE(clone_vm),
      MODE(wants_a_tracer), MODE(asks_to_trace), MODE(stopped_and_continued));
MAIN
