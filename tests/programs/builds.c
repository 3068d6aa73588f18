// Sorts a few numbers and sums them up. -DLESS='>' sorts in the other direction; -DMORE notes the seventh number;
// -DLONGER has a function do the same with more instructions, and pointers that are to be relocated; -DINLINED has
// another be a part of its caller; -DDEEPER has one call itself once more, and be longer.
#include <stdio.h>

#ifndef LESS
#define LESS <
#endif
#ifdef INLINED
#define PART static inline __attribute__((always_inline))
#else
#define PART static __attribute__((noinline))
#endif

static int numbers[] = {5, 3, 9, 1, 7, 2, 8, 6, 4, 0};
enum { COUNT = sizeof numbers / sizeof *numbers };

__attribute__((noinline)) static int before(int a, int b) {
    if (a LESS b) {
        __asm__ volatile("nop");  // so that it is a branch
        return 1;
    }
    return 0;
}

__attribute__((noinline)) static void sort(void) {
    for (int i = 1; i < COUNT; i++) {
        int number = numbers[i], at = i;
        for (; at > 0 && before(number, numbers[at - 1]); at--) numbers[at] = numbers[at - 1];
        numbers[at] = number;
    }
}

__attribute__((noinline)) static int mixed(int number) {
    int sum = number;
#ifdef LONGER
    static int marks[3];
    static int *const volatile places[] = {&marks[0], &marks[1], &marks[2]};
    for (volatile int i = 0; i < 3; i++) sum += places[i] - marks;
    sum -= 3;
#endif
    return sum ^ 1;
}

PART int twice(int number) { return mixed(number) * 2; }

#ifdef MORE
__attribute__((noinline)) static void noted(int *number) { __asm__ volatile("" : "+m"(*number)); }
#endif

__attribute__((noinline)) static int total(void) {
    int sum = 0;
    for (int i = 0; i < COUNT; i++) {
        sum += twice(numbers[i]);
#ifdef MORE
        if (i == 6) noted(&numbers[i]);
#endif
    }
    return sum;
}

__attribute__((noinline)) static int down(int number) {
#ifdef DEEPER
    if (number == -1) return 0;
    __asm__ volatile("nop");
#else
    if (number == 0) return 0;
#endif
    return down(number - 1) + 1;
}

int main(void) {
    sort();
    printf("total %d\n", total() + (down(3) > 0));
    return 0;
}
