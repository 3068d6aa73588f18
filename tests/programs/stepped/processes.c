// Processes and threads: fork, vfork, exec, exec by a second thread, threads that end early and late, stops, kills.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *self;

static void *sum(void *count)
{
    long total = 0;
    for (long i = 0; i < (long)count; i++)
        total += i;
    return (void *)total;
}

static void *forever(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static void *run_again(void *unused)
{
    execl(self, self, "status", "11", (char *)0);
    return unused;
}

static int wait_for(pid_t pid)
{
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int main(int count, char **arguments)
{
    self = arguments[0];
    setvbuf(stdout, 0, _IONBF, 0);
    if (count > 2 && !strcmp(arguments[1], "status"))
        return atoi(arguments[2]);
    if (count > 1 && !strcmp(arguments[1], "wait")) {
        fork();
        pthread_create(&(pthread_t){0}, 0, forever, 0);
        forever(0);
    }
    pid_t pid = fork();
    if (pid == 0)
        _exit(5);
    printf("fork %d\n", wait_for(pid));
    pid = vfork();
    if (pid == 0) {
        execl(self, self, "status", "6", (char *)0);
        _exit(127);
    }
    printf("vfork %d\n", wait_for(pid));
    pid = vfork();
    if (pid == 0) {
        execl("/nowhere", "nowhere", (char *)0);
        _exit(9);
    }
    printf("no exec %d\n", wait_for(pid));
    char *again[] = {self, "status", "7", 0};
    posix_spawn(&pid, self, 0, 0, again, environ);
    printf("spawn %d\n", wait_for(pid));

    pthread_t threads[3];
    for (long i = 0; i < 3; i++)
        pthread_create(&threads[i], 0, sum, (void *)(i * 10));
    long total = 0;
    for (int i = 0; i < 3; i++) {
        void *result;
        pthread_join(threads[i], &result);
        total += (long)result;
    }
    printf("threads %ld\n", total);

    pid = fork();
    if (pid == 0) {
        pthread_create(&threads[0], 0, forever, 0);
        pthread_create(&threads[1], 0, run_again, 0);
        forever(0);
    }
    printf("exec by a thread %d\n", wait_for(pid));
    pid = fork();
    if (pid == 0) {
        pthread_create(&threads[0], 0, forever, 0);
        exit(12);
    }
    printf("exit of all %d\n", wait_for(pid));
    pid = fork();
    if (pid == 0) {
        pthread_create(&threads[0], 0, sum, (void *)1000);
        syscall(SYS_exit, 0); // pthread_exit would load a library to unwind the stack
    }
    printf("first thread ends %d\n", wait_for(pid));
    pid = fork();
    if (pid == 0)
        abort();
    printf("abort %d\n", wait_for(pid));
    pid = fork();
    if (pid == 0)
        forever(0);
    kill(pid, SIGKILL);
    printf("kill %d\n", wait_for(pid));

    int status, gate[2];
    if (pipe(gate) != 0)
        return 1;
    pid = fork();
    if (pid == 0) {
        char letter;
        raise(SIGSTOP);
        _exit(read(gate[0], &letter, 1) == 1 ? 4 : 1);
    }
    waitpid(pid, &status, WUNTRACED);
    printf("stopped %d by %d\n", WIFSTOPPED(status), WSTOPSIG(status));
    kill(pid, SIGCONT);
    waitpid(pid, &status, WCONTINUED);
    printf("continued %d\n", WIFCONTINUED(status));
    if (write(gate[1], "x", 1) != 1)
        return 1;
    printf("goes on %d\n", wait_for(pid));
    pid = fork();
    if (pid == 0)
        for (;;)
            ;
    kill(pid, SIGSTOP);
    waitpid(pid, &status, WUNTRACED);
    printf("stopped in its loop %d\n", WSTOPSIG(status));
    kill(pid, SIGCONT);
    kill(pid, SIGTERM);
    printf("terminated %d\n", wait_for(pid));
    raise(SIGKILL);
    return 0;
}
