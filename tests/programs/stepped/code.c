// Code that no file has, or no longer: anonymous memory that is rewritten, by W^X and by RWX, in two threads, shared
// pages, a changed page of the program itself.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int (*function)(int);

// mov $value, %eax; add %edi, %eax; ret
static void write_code(unsigned char *at, int value)
{
    unsigned char code[] = {0xb8, 0, 0, 0, 0, 0x01, 0xf8, 0xc3};
    memcpy(code + 1, &value, 4);
    memcpy(at, code, sizeof code);
}

static unsigned char *shared_code;
static volatile int turn;

static void *other(void *unused)
{
    long sum = 0;
    (void)unused;
    for (int i = 0; i < 5; i++) {
        while (turn != 2 * i + 1)
            ;
        sum += ((function)shared_code)(i);
        turn = 2 * i + 2;
    }
    return (void *)sum;
}

// A page of its own: it will not be executable for a while.
int patched(int value);
__asm__(".section .patched, \"ax\", @progbits\n"
        ".balign 4096\n"
        "patched: lea 1(%rdi), %eax; ret\n"
        ".balign 4096\n"
        ".previous\n");

int main(void)
{
    int sum = 0;
    unsigned char *page = mmap(0, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 4; i++) {
        write_code(page, i);
        sum += ((function)page)(100);
    }
    // Over a page boundary.
    write_code(page + 4094, 7);
    sum += ((function)(page + 4094))(1);
    printf("rwx %d\n", sum);

    unsigned char *flip = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 3; i++) {
        mprotect(flip, 4096, PROT_READ | PROT_WRITE);
        write_code(flip, 10 * i);
        mprotect(flip, 4096, PROT_READ | PROT_EXEC);
        sum += ((function)flip)(1);
    }
    printf("w^x %d\n", sum);

    int fd = memfd_create("code", 0);
    if (ftruncate(fd, 4096) != 0)
        return 1;
    unsigned char *writable = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    shared_code = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    write_code(writable, 0);
    pthread_t thread;
    pthread_create(&thread, 0, other, 0);
    for (int i = 0; i < 5; i++) {
        write_code(writable, 1000 * i);
        sum += ((function)shared_code)(i);
        turn = 2 * i + 1;
        while (turn != 2 * i + 2)
            ;
    }
    void *result;
    pthread_join(thread, &result);
    printf("shared %d %ld\n", sum, (long)result);

    sum += patched(1);
    unsigned char *text = (unsigned char *)((unsigned long)patched & ~4095ul);
    mprotect(text, 4096, PROT_READ | PROT_WRITE);
    write_code((unsigned char *)patched, 5);
    mprotect(text, 4096, PROT_READ | PROT_EXEC);
    sum += patched(1);
    printf("patched %d\n", sum);

    munmap(page, 8192);
    unsigned char *again = mmap(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    write_code(again, 3);
    sum += ((function)again)(4);
    if (fork() == 0) {
        write_code(again, 30);
        _exit(((function)again)(4));
    }
    unsigned char *moved = mremap(again, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, flip);
    sum += ((function)moved)(5);
    printf("moved %d\n", sum);
    return 0;
}
