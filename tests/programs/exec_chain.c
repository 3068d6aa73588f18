// A program that becomes itself three times.
#include "start.h"

int main(int argc, char **argv, char **envp) {
    char count[2] = {argc > 1 ? argv[1][0] : '3', 0};
    say(count);
    say("\n");
    if (count[0] == '0') return 3;
    count[0]--;
    char *const next[] = {argv[0], count, 0};
    CALL(execve, "/proc/self/exe", next, envp, 0);
    return 127;
}
