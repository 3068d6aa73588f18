/* For profiles: a loop whose hot path is taken branches, recursion, and calls from the C library. */
#include <stdio.h>
#include <stdlib.h>

static int numbers[300];

__attribute__((noipa)) static int compare(const void *left, const void *right) {
    int a = *(const int *)left, b = *(const int *)right;
    return a < b ? -1 : a > b;
}

__attribute__((noipa)) static void bubble(int *all, int count) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j + 1 < count - i; j++)
            if (all[j] > all[j + 1]) {
                int kept = all[j];
                all[j] = all[j + 1];
                all[j + 1] = kept;
            }
}

__attribute__((noipa)) int fibonacci(int n) {
    if (n < 2)
        return n;
    return fibonacci(n - 1) + fibonacci(n - 2);
}

__attribute__((noipa)) static void fill(unsigned seed) {
    for (int i = 0; i < 300; i++) {
        seed = seed * 1103515245u + 12345u;
        numbers[i] = seed >> 8;
    }
}

int main(void) {
    fill(1);
    bubble(numbers, 300);
    fill(2);
    qsort(numbers, 300, sizeof *numbers, compare);
    printf("%d %d\n", numbers[7], fibonacci(11));
    return 0;
}
