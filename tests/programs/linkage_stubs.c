/* Calls functions of the C library through the procedure linkage table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    char text[16];
    unsigned long sum = 0;
    for (int i = 0; i < 1000; i++) {
        text[0] = '0' + i % 10;
        text[1] = 0;
        sum += strlen(text) + strtol(text, 0, 10);
    }
    printf("%lu\n", sum);
    return 0;
}
