/* Calls functions, also in a child process, and in the same program after exec. Returns 0. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int calls;

__attribute__((noipa)) static void say(const char *text)
{
    calls += write(1, text, strlen(text)) > 0;
}

__attribute__((noipa)) static void work(int count)
{
    for (int at = 0; at < count; at++)
        say("work\n");
    calls++;
}

__attribute__((noipa)) static void run_again(char *program)
{
    char *arguments[] = {program, "again", 0};
    say("child\n");
    execv(program, arguments);
    calls++;
}

__attribute__((noipa)) static void run_second_time(void)
{
    say("second\n");
    calls++;
}

int main(int count, char **arguments)
{
    if (count > 1) {
        run_second_time();
        return 0;
    }
    work(3);
    int child = fork();
    if (child == 0) {
        run_again(arguments[0]);
        return 1;
    }
    int status;
    waitpid(child, &status, 0);
    return status;
}
