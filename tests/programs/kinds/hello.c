#include <stdio.h>
#include <string.h>

int main(int count, char **words) {
    printf("hello %d %d\n", count, strlen(words[0]) > 0);
    return 3;
}
