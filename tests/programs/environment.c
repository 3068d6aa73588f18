// Prints its environment, a line for each entry.
#include "start.h"

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv;
    for (; *envp; envp++) {
        say(*envp);
        say("\n");
    }
    return 0;
}
