// Ends by a call through a null pointer: the fault is at address 0, where no instruction is.
#include "start.h"

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    void (*volatile nowhere)(void) = 0;
    say("crashing\n");
    nowhere();
    return 0;
}
