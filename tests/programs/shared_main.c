// Calls a function of a shared object ten times, then another, which calls itself three times and reads unmapped
// memory.
#include <stdio.h>

int scale(int x);
int deeper(int *there, int count);

static int step(int i) { return scale(i) + 1; }

int main(int argc, char **argv) {
    (void)argv;
    int sum = 0;
    for (int i = 0; i < 10; i++) sum += step(i);
    printf("sum %d\n", sum);
    fflush(stdout);
    return (sum + deeper((int *)16, argc + 2)) & 7;
}
