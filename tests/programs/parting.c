/* Takes a path that its argument selects, to compare two recordings. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile int sum;

__attribute__((noipa)) static void loop(int flip) {
    for (int i = 0; i < 1000; i++) {
        sum += i;
        if (i == 777 && flip)
            sum += 3;
    }
}

__attribute__((noipa)) static void extra(void) {
    for (int i = 0; i < 100; i++)
        sum ^= i;
}

__attribute__((noipa)) static void *sum_up(void *nothing) {
    for (int i = 0; i < 50; i++)
        sum += i;
    return nothing;
}

__attribute__((noipa)) static void *multiply(void *nothing) {
    for (int i = 0; i < 60; i++)
        sum *= i;
    return nothing;
}

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "";
    /* Compared by hand, so that the selection itself takes the same path for each. */
    int flip = way[0] == 'f', call = way[0] == 'c', swap = way[0] == 's';
    int longer = way[0] == 'l', early = way[0] == 'e';
    loop(flip);
    if (call)
        extra();
    static char text[2][64];
    memset(text[0], 'x', 20 + 20 * longer);
    sum += strlen(text[0]);
    if (early)
        exit(0);
    pthread_t first, second;
    void *(*work[2])(void *) = {sum_up, multiply};
    pthread_create(&first, NULL, work[swap], NULL);
    pthread_join(first, NULL);
    pthread_create(&second, NULL, work[!swap], NULL);
    pthread_join(second, NULL);
    return 0;
}
