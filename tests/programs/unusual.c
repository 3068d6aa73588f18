// Unusual actions of programs that a recorder inside the process must survive: one mode per argument.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void *briefly(void *nothing) {
    usleep(1000);
    return nothing;
}

static int threads(void) {
    enum { COUNT = 1000 };
    static pthread_t all[COUNT];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    int made = 0;
    while (made < COUNT && pthread_create(&all[made], &small, briefly, 0) == 0) made++;
    for (int i = 0; i < made; i++) pthread_join(all[i], 0);
    printf("%d\n", made);
    return 0;
}

static int deep(int left) {
    volatile char kept[64];
    kept[0] = (char)left;
    return left ? deep(left - 1) + kept[0] : 0;
}

static int run(const char *program, char *argument) {
    char *argv[] = {"program", argument, 0};
    execve(program, argv, environ);
    return errno;
}

// Arguments too large in one, too large in all; then large ones that fit.
static int large(void) {
    enum { SIZE = 200000, COUNT = 5000 };
    static char text[SIZE], *argv[COUNT + 1];
    memset(text, 'x', SIZE - 1);
    printf("%d\n", run("/bin/true", text) == E2BIG);
    text[1000] = 0;
    for (int i = 0; i < COUNT; i++) argv[i] = text;
    execve("/bin/true", argv, environ);
    printf("%d\n", errno == E2BIG);
    fflush(stdout);
    argv[1000] = 0;
    execve("/bin/true", argv, environ);
    return 1;
}

static int files(void) {
    struct rlimit low = {64, 64};
    setrlimit(RLIMIT_NOFILE, &low);
    int count = 0;
    while (dup(1) >= 0) count++;
    printf("%d\n", count > 50);
    fflush(stdout);
    for (int i = 3; i < 1024; i++) close(i);
    run("/bin/true", 0);
    return 1;
}

static int memory(void) {
    struct rlimit low = {64 << 20, 64 << 20};
    setrlimit(RLIMIT_AS, &low);
    run("/bin/true", 0);
    return 1;
}

static int daemonise(const char *result) {
    if (fork()) _exit(0);
    setsid();
    if (fork()) _exit(0);
    if (chdir("/")) return 1;
    for (int i = 0; i < 3; i++) close(i);
    usleep(300000);
    int file = open(result, O_CREAT | O_WRONLY, 0600);
    return write(file, "done", 4) != 4;
}

static int other_root(const char *root) {
    if (chroot(root) || chdir("/")) return 77;
    if (!fork()) _exit(access("/inside", F_OK) ? 1 : 5);
    int status;
    wait(&status);
    printf("%d\n", WEXITSTATUS(status));
    fflush(stdout);
    run("/inside", 0);
    return 1;
}

static int other_user(void) {
    if (setgid(65534) || setuid(65534)) return 77;
    if (!fork()) {
        printf("%d\n", (int)getuid());
        fflush(stdout);
        run("/bin/true", 0);
        _exit(1);
    }
    int status;
    wait(&status);
    return WEXITSTATUS(status);
}

static int words(int count, char **argv) {
    for (int i = 0; i < count; i++) {
        for (unsigned char *byte = (unsigned char *)argv[i]; *byte; byte++) printf("%02x", *byte);
        printf(".");
    }
    printf("\n");
    return 0;
}

// Waits in the kernel forever, in two processes, one of them in a separate session.
static int wait_for_ever(void) {
    if (fork() == 0) setsid(), printf("%d\n", getpid()), fflush(stdout);
    for (;;) pause();
}

static volatile int running;

static void *spin(void *nothing) {
    for (;;) running = 1;
    return nothing;
}

// A thread is in user code while the process is sent a signal.
static int killed(int number) {
    pthread_t thread;
    pthread_create(&thread, 0, spin, 0);
    while (!running) usleep(100);
    kill(getpid(), number);
    return 1;
}

int main(int count, char **argv) {
    const char *mode = count > 1 ? argv[1] : "";
    const char *more = count > 2 ? argv[2] : "";
    if (!strcmp(mode, "threads")) return threads();
    if (!strcmp(mode, "deep")) return deep(60000) & 0;
    if (!strcmp(mode, "bottomless")) return deep(-1) & 0;
    if (!strcmp(mode, "large")) return large();
    if (!strcmp(mode, "files")) return files();
    if (!strcmp(mode, "memory")) return memory();
    if (!strcmp(mode, "daemon")) return daemonise(more);
    if (!strcmp(mode, "killed")) return killed(atoi(more));
    if (!strcmp(mode, "root")) return other_root(more);
    if (!strcmp(mode, "user")) return other_user();
    if (!strcmp(mode, "words")) return words(count - 2, argv + 2);
    if (!strcmp(mode, "wait")) return wait_for_ever();
    return 2;
}
