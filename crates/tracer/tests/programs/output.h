// Where the programs write: the tracer gives them the standard output of the test otherwise.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void redirect_output(void)
{
    const char *path = getenv("OUTPUT");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (file >= 0) {
        dup2(file, STDOUT_FILENO);
        close(file);
    }
}
