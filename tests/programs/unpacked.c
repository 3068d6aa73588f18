/* Unpacks code to a temporary file, maps it, runs it; the file is deleted or overwritten at once. Twice, with
 * other code under the same name. argv: the path, u(nlinked), l(ater unlinked), o(verwritten) or b(eyond 4 GB). */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* xor eax, eax; again: inc eax / add eax, 3; cmp eax, edi; jl again; ret */
static const unsigned char codes[2][10] = {
    {0x31, 0xc0, 0xff, 0xc0, 0x39, 0xf8, 0x7c, 0xfa, 0xc3, 0x90},
    {0x31, 0xc0, 0x83, 0xc0, 0x03, 0x39, 0xf8, 0x7c, 0xf9, 0xc3},
};

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    char how = *argv[2];
    off_t at = how == 'b' ? 5LL << 30 : 0;
    for (int i = 0; i < 4; i++) {
        int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0755);
        if (pwrite(file, codes[i & 1], sizeof codes[0], at) < 0) return 3;
        int (*code)(int) = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, at);
        close(file);
        if (how == 'u' || how == 'b') unlink(argv[1]);
        printf("%d\n", code(100 + i));
        munmap(code, 4096);
        if (how == 'l') unlink(argv[1]);
    }
    return 5;
}
