// Shared by the programs of this folder: one mode per argument, work with branches, and code generated at run time.
#ifndef TORTURE_H
#define TORTURE_H

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    const char *name;
    int (*run)(void);
} Mode;

#define MODE(name) {#name, name}
#define MODES(...) static const Mode MODES_OF_THIS[] = {__VA_ARGS__}

enum { PAGE = 4096, ALL = PROT_READ | PROT_WRITE | PROT_EXEC };

static volatile int counted;
__attribute__((unused)) static char **arguments;

// Some calls and some branches.
__attribute__((noinline, unused)) static int work(int left) {
    return left < 2 ? left : work(left - 1) + work(left - 2);
}

__attribute__((unused)) static void count(int number) {
    (void)number;
    counted++;
}

__attribute__((unused)) static uint8_t *pages(int protection) {
    return mmap(0, 2 * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

typedef int (*Function)(int);

__attribute__((unused)) static int call(const void *code, int argument) {
    return ((Function)(uintptr_t)code)(argument);
}

enum { ODD_SIZE = 16 };

// Code: `value`, and one more where the argument is even.
__attribute__((unused)) static void put_odd(void *at, int value) {
    uint8_t code[ODD_SIZE] = {0xb8, 0, 0, 0, 0, 0x40, 0xf6, 0xc7, 1, 0x75, 2, 0xff, 0xc0, 0xc3, 0x90, 0x90};
    memcpy(code + 1, &value, 4);
    memcpy(at, code, sizeof code);
}

// Code: `value`, six bytes.
__attribute__((unused)) static void put_value(void *at, int value) {
    uint8_t code[6] = {0xb8, 0, 0, 0, 0, 0xc3};
    memcpy(code + 1, &value, 4);
    memcpy(at, code, sizeof code);
}

__attribute__((unused)) static void sleep_ms(int ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&left, &left) && errno == EINTR) continue;
}

// Exit status of any child, or minus its signal.
__attribute__((unused)) static int child_status(void) {
    int status = 0;
    if (wait(&status) < 0) return -1000;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

__attribute__((unused)) static void limit(int what, rlim_t value) {
    struct rlimit both = {value, value};
    setrlimit(what, &both);
}

static sigjmp_buf landing;

__attribute__((unused)) static void land(int number) {
    siglongjmp(landing, number);
}

#define MAIN                                                                     \
    int main(int size, char **given) {                                           \
        arguments = given;                                                       \
        setvbuf(stdout, 0, _IONBF, 0);                                           \
        for (unsigned i = 0; i < sizeof MODES_OF_THIS / sizeof *MODES_OF_THIS; i++) { \
            if (size < 2) puts(MODES_OF_THIS[i].name);                           \
            else if (!strcmp(MODES_OF_THIS[i].name, given[1])) return MODES_OF_THIS[i].run(); \
        }                                                                        \
        return size < 2 ? 0 : 99;                                                \
    }

#endif
