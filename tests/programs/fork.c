// A child without shared memory: both continue at the same address; the parent gets exit statuses.
#include "start.h"

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    long sum = 0;
    for (int i = 1; i <= 3; i++) {
        long child = CALL(fork, 0, 0, 0, 0);
        if (child == 0) return 10 * i;
        int status = 0;
        CALL(wait4, child, &status, 0, 0);
        sum += status >> 8;
    }
    say_number("sum", sum);
    return 0;
}
