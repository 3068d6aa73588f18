// Code rewritten in a writable and executable page between calls, with no system call between; also code that
// rewrites itself while it runs.
#include <sys/mman.h>

#include "start.h"

typedef int (*code)(void);

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    char *page = (char *)call6(__NR_mmap, 0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static const char constant[] = "\xb8\0\0\0\0\xc3";            // mov $0, %eax; ret
    static const char branching[] = "\x31\xc0\x74\x02\xff\xc0\xc3"; // xor %eax, %eax; jz +2; inc %eax; ret
    static const char itself[] = "\xc6\x05\x01\0\0\0\x2a\xb8\0\0\0\0\xc3"; // movb $42, the next's operand
    long sum = 0;
    for (int i = 0; i < sizeof constant - 1; i++) page[i] = constant[i];
    for (int i = 0; i < 50; i++) {
        page[1] = i;
        sum += ((code)page)();
    }
    for (int i = 0; i < sizeof branching - 1; i++) page[i] = branching[i];
    for (int i = 0; i < 20; i++) {
        page[2] = 0x74 + (i & 1);  // jz, jnz
        sum += 1000 * ((code)page)();
    }
    for (int i = 0; i < sizeof itself - 1; i++) page[i] = itself[i];
    sum += 100000 * ((code)page)();
    say_number("sum", sum);
    return 0;
}
