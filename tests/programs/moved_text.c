/* Text that is copied to anonymous memory and moved over the original, as for huge pages. argv: move, or
 * other: other code is moved there. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096
#define OWN_PAGE __attribute__((noinline, aligned(PAGE)))

OWN_PAGE static int hot(int rounds) {
    int sum = 0;
    for (int i = 0; i < rounds; i++) {
        sum += i ^ (sum >> 1);
        __asm__ volatile("");
    }
    return sum;
}

OWN_PAGE static int cold(void) { return 1; }

int main(int argc, char **argv) {
    char *text = (char *)(uintptr_t)hot;
    int first = hot(1000);
    char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, text, PAGE);
    /* mov eax, 500; again: dec eax; jnz again; ret */
    static const unsigned char other[] = {0xb8, 0xf4, 0x01, 0, 0, 0xff, 0xc8, 0x75, 0xfc, 0xc3};
    if (argc > 1 && !strcmp(argv[1], "other")) memcpy(page, other, sizeof other);
    mprotect(page, PAGE, PROT_READ | PROT_EXEC);
    if (mremap(page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, text) == MAP_FAILED) return 3;
    printf("%d %d %d\n", first, hot(1000), cold());
    return 6;
}
