/* Functions inlined from a header, and a function with many lines that two callers call. */
int external(int x);
#include "inlined.h"

__attribute__((noipa)) int external(int x) {
    return x * 3;
}

__attribute__((noipa)) static int repeat(int count) {
    int sum = 1;
    for (int i = 0; i < count; i++) {
        sum ^= four_times(sum);
        sum += i;
    }
    return sum;
}

__attribute__((noipa)) static int rarely(void) {
    return repeat(10) + 1;
}

__attribute__((noipa)) static int often(void) {
    return repeat(1000) + 1;
}

int main(void) {
    return (rarely() ^ often()) & 1;
}
