/* Follows a list whose end is damaged, and crashes. The documentation debugs this program. */
#include <stdio.h>

struct node {
    struct node *next;
    int value;
};

__attribute__((noinline)) static int sum(const struct node *node) {
    int total = 0;
    while (node != (const struct node *)8) { /* should compare with 0 */
        total += node->value;
        node = node->next;
    }
    return total;
}

int main(void) {
    struct node last = {0, 3}, middle = {&last, 2}, first = {&middle, 1};
    printf("%d\n", sum(&first));
    return 0;
}
