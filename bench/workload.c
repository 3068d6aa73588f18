// A bit of everything that programs do: sorts numbers through a comparison function, counts words, walks a tree.
// usage: workload TIMES; about 100,000 instructions each time.
#include "start.h"

enum { COUNT = 400, NODES = 200 };

static unsigned state = 1;
static int numbers[COUNT];
static struct node {
    int key;
    struct node *left, *right;
} nodes[NODES];

static unsigned next(void) { return state = state * 1664525 + 1013904223; }

static int up(int a, int b) { return a - b; }
static int down(int a, int b) { return b - a; }

__attribute__((noinline)) static void sort(int *from, int *to, int (*order)(int, int)) {
    while (to - from > 1) {
        int pivot = from[(to - from) / 2], *low = from, *high = to - 1;
        while (low <= high) {
            while (order(*low, pivot) < 0) low++;
            while (order(*high, pivot) > 0) high--;
            if (low <= high) {
                int swapped = *low;
                *low++ = *high;
                *high-- = swapped;
            }
        }
        sort(from, high + 1, order);
        from = low;
    }
}

__attribute__((noinline)) static int depth(const struct node *node) {
    if (!node) return 0;
    int left = depth(node->left), right = depth(node->right);
    return 1 + (left > right ? left : right);
}

static void insert(struct node **place, struct node *node) {
    while (*place) place = node->key < (*place)->key ? &(*place)->left : &(*place)->right;
    *place = node;
}

__attribute__((noinline)) static int words(const char *text) {
    int count = 0, inside = 0;
    for (; *text; text++) {
        switch (*text) {
            case ' ': case '\t': case '\n': case ',': case '.':
                inside = 0;
                break;
            default:
                count += !inside;
                inside = 1;
        }
    }
    return count;
}

int main(int argc, char **argv, char **envp) {
    (void)envp;
    long times = 0, sum = 0;
    for (const char *digit = argc > 1 ? argv[1] : "1"; *digit; digit++) times = times * 10 + *digit - '0';
    int (*volatile orders[])(int, int) = {up, down};
    while (times-- > 0) {
        for (int i = 0; i < COUNT; i++) numbers[i] = next() >> 8;
        sort(numbers, numbers + COUNT, orders[times & 1]);
        struct node *root = 0;
        for (int i = 0; i < NODES; i++) {
            nodes[i] = (struct node){.key = next() >> 8};
            insert(&root, &nodes[i]);
        }
        sum += depth(root) + words("the quick brown fox, jumps over the lazy dog. again and again");
    }
    say_number("sum", sum);
    return 0;
}
