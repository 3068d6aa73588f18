/* A JIT compiler: two functions in memory without a file. The argument "map" writes their names to
 * /tmp/perf-PID.map, "dump" to jit-PID.dump in the current folder, with times of CLOCK_MONOTONIC, as V8 does.
 */
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef int (*function)(int);

/* mov ecx, edi; loop: add eax, ecx; dec ecx; jnz loop; ret, after xor eax, eax */
static const unsigned char SUM[] = {0x31, 0xc0, 0x89, 0xf9, 0x01, 0xc8, 0xff, 0xc9, 0x75, 0xfa, 0xc3};
/* lea eax, [rdi + rdi]; ret */
static const unsigned char TWICE[] = {0x8d, 0x04, 0x3f, 0xc3};

struct header {
    uint32_t magic, version, size, machine, pad, pid;
    uint64_t time, flags;
};
struct load {
    uint32_t kind, size;
    uint64_t time;
    uint32_t pid, tid;
    uint64_t address, code_address, code_size, index;
};

static FILE *map, *dump;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static function compile(unsigned char *at, const unsigned char *code, size_t size, const char *name) {
    static uint64_t index;
    memcpy(at, code, size);
    if (map)
        fprintf(map, "%lx %zx %s\n", (unsigned long)at, size, name);
    if (dump) {
        struct load load = {0, sizeof load + strlen(name) + 1 + size, now(), getpid(), getpid(),
                            (uintptr_t)at, (uintptr_t)at, size, index++};
        fwrite(&load, sizeof load, 1, dump);
        fwrite(name, strlen(name) + 1, 1, dump);
        fwrite(code, size, 1, dump);
    }
    return (function)(uintptr_t)at;
}

int main(int argc, char **argv) {
    char path[64];
    if (argc > 1 && strcmp(argv[1], "map") == 0) {
        snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
        if (!(map = fopen(path, "w")))
            return 1;
    } else if (argc > 1) {
        snprintf(path, sizeof path, "jit-%d.dump", getpid());
        if (!(dump = fopen(path, "w")))
            return 1;
        struct header header = {0x4a695444, 1, sizeof header, EM_X86_64, 0, getpid(), now(), 0};
        fwrite(&header, sizeof header, 1, dump);
    }
    unsigned char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE | PROT_EXEC,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    function sum = compile(memory + 0x100, SUM, sizeof SUM, "JS:*sum of numbers:1");
    function twice = compile(memory + 0x1200, TWICE, sizeof TWICE, "twice");
    if (map)
        fclose(map);
    if (dump)
        fclose(dump);
    printf("%d\n", sum(100) + twice(7));
    return 0;
}
