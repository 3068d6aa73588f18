/* A program of the C library: a tree of numbers, sorted numbers, a line about them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node {
    struct node *left, *right;
    int key;
    double root;
};

static struct node *insert(struct node *node, int key) {
    if (!node) {
        node = calloc(1, sizeof *node);
        if (!node) exit(9);
        node->key = key;
        node->root = sqrt(key);
        return node;
    }
    if (key < node->key)
        node->left = insert(node->left, key);
    else
        node->right = insert(node->right, key);
    return node;
}

static double sum(const struct node *node) {
    return node ? sum(node->left) + node->root + sum(node->right) : 0;
}

static int compare(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 1000;
    unsigned random = 1;
    struct node *tree = NULL;
    int *numbers = malloc(count * sizeof *numbers);
    if (!numbers) return 9;
    for (int i = 0; i < count; i++) {
        random = random * 1103515245 + 12345;
        numbers[i] = random >> 16 & 0x3fff;
        tree = insert(tree, numbers[i]);
    }
    qsort(numbers, count, sizeof *numbers, compare);
    char line[80];
    snprintf(line, sizeof line, "%d %.3f", numbers[count / 2], sum(tree));
    puts(line);
    switch (strlen(line) % 7) {
        case 0: return 1;
        case 1: return 2;
        case 2: return 7;
        default: return 5;
    }
}
