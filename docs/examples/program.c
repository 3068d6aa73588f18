/* Counts primes up to a limit. The documentation records this program. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline)) static int is_prime(int n) {
    for (int d = 2; d * d <= n; d++)
        if (n % d == 0)
            return 0;
    return n > 1;
}

int main(int argc, char **argv) {
    int limit = argc > 1 ? atoi(argv[1]) : 1000;
    int found = 0;
    if (limit < 0) {
        fputs("the limit is negative\n", stderr);
        return 1;
    }
    for (int n = 0; n <= limit; n++)
        found += is_prime(n);
    printf("%d primes up to %d\n", found, limit);
    return 0;
}
