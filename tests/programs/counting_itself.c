/* Counts its own branches, indirect calls and jumps, and the iterations of its loops. */
#include <stdio.h>

#define PLAIN __attribute__((noipa)) static

struct loop { long entries, iterations, least, most; };

static struct loop searches = {.least = 1000}, walks = {.least = 1000}, pairs = {.least = 1000},
    countdowns = {.least = 1000};
static long thirds, others, doubled, squared, negated, cases[6];
static int numbers[100];

PLAIN void note(struct loop *loop, long iterations) {
    loop->entries++;
    loop->iterations += iterations;
    if (iterations < loop->least)
        loop->least = iterations;
    if (iterations > loop->most)
        loop->most = iterations;
}

/* Leaves its loop in the middle. */
PLAIN void search(int wanted) {
    long i = 0;
    do {
        if (numbers[i++] == wanted)
            break;
    } while (i < 100);
    note(&searches, i);
}

/* Calls itself in its loop. */
PLAIN long walk(long depth) {
    long i = 0, sum = 1;
    do {
        i++;
        if (depth > i)
            sum += walk(depth - i);
    } while (i < depth);
    note(&walks, i);
    return sum;
}

/* Has a loop in a loop, which it leaves for the next iteration of the outer loop. */
PLAIN long find_pairs(void) {
    long found = 0, i = 0;
    do {
        long j = 0;
        do {
            if (numbers[j++] + numbers[i] == 60) {
                found++;
                break;
            }
        } while (j < 40);
        note(&pairs, j);
    } while (++i < 100);
    return found;
}

PLAIN int divide(int n) {
    if (n % 3 == 0) {
        thirds++;
        return n / 3;
    }
    others++;
    return n;
}

PLAIN int twice(int n) { doubled++; return 2 * n; }
PLAIN int square(int n) { squared++; return n * n; }
PLAIN int negate(int n) { negated++; return -n; }

PLAIN int call(int n) {
    static int (*const functions[])(int) = {twice, square, twice, negate, twice};
    return functions[n % 5](n) + 1;
}

PLAIN int jump(int n) {
    switch (n % 7) {
    case 0: cases[0]++; return 3;
    case 1: cases[1]++; return n + 8;
    case 2: cases[2]++; return n * 5;
    case 3: cases[3]++; return n - 7;
    case 4: cases[4]++; return n ^ 9;
    default: cases[5]++; return n;
    }
}

/* Begins with its loop, and calls itself in the loop. */
void countdown(int n);
__asm__(".type countdown, @function\n"
        "countdown: dec %edi; jle 1f\n"
        "push %rdi; dec %edi; call countdown; pop %rdi; jmp countdown\n"
        "1: ret\n"
        ".size countdown, . - countdown\n");

/* Counts the iterations of `countdown`. */
static void simulate_countdown(int n) {
    long iterations = 1;
    while (--n > 0) {
        simulate_countdown(n - 1);
        iterations++;
    }
    note(&countdowns, iterations);
}

static void print_loop(const char *name, const struct loop *loop) {
    printf("%s %ld %ld %ld %ld\n", name, loop->entries, loop->iterations, loop->least, loop->most);
}

int main(void) {
    for (int i = 0; i < 100; i++)
        numbers[i] = i * 7 % 100;
    for (int i = 0; i < 500; i++) {
        divide(i * i);
        call(i * 3);
        jump(i * i % 50);
    }
    for (int i = 0; i < 120; i++)
        search(i);
    walk(9);
    find_pairs();
    countdown(7);
    simulate_countdown(7);
    print_loop("search", &searches);
    print_loop("walk", &walks);
    print_loop("find_pairs", &pairs);
    print_loop("countdown", &countdowns);
    printf("divide %ld %ld\n", thirds, others);
    printf("call %ld %ld %ld\n", doubled, squared, negated);
    printf("jump");
    for (int i = 0; i < 6; i++)
        printf(" %ld", cases[i]);
    printf("\n");
    return 0;
}
