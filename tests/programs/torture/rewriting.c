// Code that changes: by whom, how, and how near to where it runs.
#include <pthread.h>
#include <sched.h>
#include <sys/uio.h>

#include "torture.h"

enum { TIMES = 40 };

static int tell(int sum) {
    printf("%d\n", sum);
    return 0;
}

static uint8_t *shared_code(int file, int protection) {
    return mmap(0, PAGE, protection, MAP_SHARED, file, 0);
}

static int unlinked_file(int size) {
    int file = memfd_create("code", 0);
    return ftruncate(file, size) ? -1 : file;
}

static int values(void) {
    uint8_t *code = pages(ALL);
    int sum = 0;
    for (int i = 0; i < 3 * TIMES; i++) {
        put_odd(code + i % 7 * ODD_SIZE, i);
        sum += call(code + i % 7 * ODD_SIZE, i);
    }
    return tell(sum);
}

// Stores into the branch right after the store.
static int next_instruction(void) {
    static const uint8_t code[] = {0x31, 0xc0, 0x85, 0xff, 0xc6, 0x05, 0, 0, 0, 0, 0x75, 0x74, 3, 0x83, 0xc0, 5, 0xff,
        0xc0, 0xc3};
    uint8_t *at = pages(ALL);
    int sum = 0;
    for (int i = 0; i < TIMES; i++) {
        memcpy(at, code, sizeof code);
        sum += call(at, i & 1);
    }
    return tell(sum);
}

// A loop that adds an immediate and increments it.
static int own_loop(void) {
    static const uint8_t code[] = {0x31, 0xc0, 0x05, 1, 0, 0, 0, 0xff, 0x05, 0xf6, 0xff, 0xff, 0xff, 0xff, 0xcf, 0x75,
        0xf1, 0xc3};
    uint8_t *at = pages(ALL);
    memcpy(at, code, sizeof code);
    return tell(call(at, 60));
}

static int across_pages(void) {
    uint8_t *code = pages(ALL);
    int sum = 0;
    for (int i = 0; i < TIMES; i++) {
        put_value(code + PAGE - 3, i);
        sum += call(code + PAGE - 3, 0);
        put_odd(code + PAGE - 6, i);
        sum += call(code + PAGE - 6, i);
    }
    return tell(sum);
}

static int written_or_executed(void) {
    uint8_t *code = pages(PROT_READ | PROT_WRITE);
    int sum = 0;
    for (int i = 0; i < TIMES; i++) {
        mprotect(code, PAGE, PROT_READ | PROT_WRITE);
        put_odd(code, 3 * i);
        mprotect(code, PAGE, PROT_READ | PROT_EXEC);
        sum += call(code, i);
    }
    return tell(sum);
}

static int second_mapping(void) {
    int file = unlinked_file(PAGE), sum = 0;
    uint8_t *write_here = shared_code(file, PROT_READ | PROT_WRITE);
    uint8_t *run_here = shared_code(file, PROT_READ | PROT_EXEC);
    for (int i = 0; i < TIMES; i++) {
        put_odd(write_here, i);
        sum += call(run_here, i);
    }
    return tell(sum);
}

static int into_the_file(void) {
    int file = unlinked_file(PAGE), sum = 0;
    uint8_t *run_here = shared_code(file, PROT_READ | PROT_EXEC), code[ODD_SIZE];
    for (int i = 0; i < TIMES; i++) {
        put_odd(code, i);
        if (pwrite(file, code, sizeof code, 0) != sizeof code) return 1;
        sum += call(run_here, i);
    }
    return tell(sum);
}

static int from_a_pipe(void) {
    uint8_t *run_here = pages(ALL), code[ODD_SIZE];
    int ends[2], sum = 0;
    if (pipe(ends)) return 1;
    for (int i = 0; i < TIMES; i++) {
        put_odd(code, i);
        if (write(ends[1], code, sizeof code) + read(ends[0], run_here, sizeof code) != 2 * sizeof code) return 1;
        sum += call(run_here, i);
    }
    return tell(sum);
}

static int proc_self_mem(void) {
    int file = open("/proc/self/mem", O_RDWR), sum = 0;
    uint8_t *run_here = pages(PROT_READ | PROT_EXEC), code[ODD_SIZE];
    for (int i = 0; i < TIMES; i++) {
        put_odd(code, i);
        if (pwrite(file, code, sizeof code, (off_t)(uintptr_t)run_here) != sizeof code) return 1;
        sum += call(run_here, i);
    }
    return tell(sum);
}

static int process_vm_write(void) {
    uint8_t *run_here = pages(ALL), code[ODD_SIZE];
    struct iovec from = {code, sizeof code}, to = {run_here, sizeof code};
    int sum = 0;
    for (int i = 0; i < TIMES; i++) {
        put_odd(code, i);
        if (process_vm_writev(getpid(), &from, 1, &to, 1, 0) != sizeof code) return 1;
        sum += call(run_here, i);
    }
    return tell(sum);
}

static int by_a_child(void) {
    uint8_t *code = mmap(0, PAGE, ALL, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int sum = 0;
    for (int i = 0; i < TIMES / 4; i++) {
        if (!fork()) {
            put_odd(code, i);
            _exit(0);
        }
        child_status();
        sum += call(code, i);
    }
    return tell(sum);
}

static uint8_t *code_of_both;
static volatile int turn;

static void *other_thread(void *unused) {
    for (int i = 0; i < TIMES; i++) {
        while (turn != 1) sched_yield();
        put_odd(code_of_both, i);
        turn = 2;
    }
    return unused;
}

static int by_a_thread(void) {
    pthread_t thread;
    int sum = 0;
    code_of_both = pages(ALL);
    pthread_create(&thread, 0, other_thread, 0);
    for (int i = 0; i < TIMES; i++) {
        turn = 1;
        while (turn != 2) sched_yield();
        sum += call(code_of_both, i);
    }
    pthread_join(thread, 0);
    return tell(sum);
}

// Restores the contents of the file.
static int thrown_away(void) {
    int file = unlinked_file(PAGE), sum = 0;
    uint8_t code[ODD_SIZE];
    put_odd(code, 1000);
    if (pwrite(file, code, sizeof code, 0) != sizeof code) return 1;
    uint8_t *at = mmap(0, PAGE, ALL, MAP_PRIVATE, file, 0);
    for (int i = 0; i < TIMES; i++) {
        sum += call(at, i);
        put_odd(at, i);
        sum += call(at, i);
        madvise(at, PAGE, MADV_DONTNEED);
    }
    return tell(sum);
}

static int mapped_over(void) {
    uint8_t *code = pages(ALL);
    int sum = 0;
    for (int i = 0; i < TIMES; i++) {
        mmap(code, PAGE, ALL, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        put_odd(code, i);
        sum += call(code, i);
    }
    return tell(sum);
}

static int files_in_turn(void) {
    int files[2], sum = 0;
    uint8_t code[ODD_SIZE], *at = pages(ALL);
    for (int i = 0; i < 2; i++) {
        files[i] = unlinked_file(PAGE);
        put_odd(code, 1000 * i + 7);
        if (pwrite(files[i], code, sizeof code, 0) != sizeof code) return 1;
    }
    for (int i = 0; i < TIMES; i++) {
        mmap(at, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, files[i & 1], 0);
        sum += call(at, i);
    }
    return tell(sum);
}

static int moved(void) {
    uint8_t *from = pages(ALL), *to = pages(PROT_NONE);
    int sum = 0;
    put_odd(from, 5);
    for (int i = 0; i < TIMES; i++) {
        uint8_t *now = mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        if (now == MAP_FAILED) return 1;
        sum += call(now, i);
        to = from;
        from = now;
    }
    return tell(sum);
}

static int unmapped(void) {
    int sum = 0;
    for (int i = 0; i < TIMES; i++) {
        uint8_t *code = pages(ALL);
        put_odd(code, i);
        sum += call(code, i);
        munmap(code, 2 * PAGE);
    }
    return tell(sum);
}

// Runs a copy of itself whose file is deleted or replaced meanwhile.
static int copied(int replaced) {
    char name[64];
    snprintf(name, sizeof name, "/tmp/torture-%d", (int)getpid());
    int from = open("/proc/self/exe", O_RDONLY), to = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0755);
    static char bytes[16 * PAGE];
    for (ssize_t size; (size = read(from, bytes, sizeof bytes)) > 0;)
        if (write(to, bytes, size) != size) return 1;
    close(to);
    if (!fork()) {
        execl(name, name, replaced ? "loses_its_file_to_another" : "loses_its_file", (char *)0);
        _exit(1);
    }
    int status = child_status();
    unlink(name);
    printf("%d\n", status);
    return 0;
}

static int loses_its_file(void) {
    unlink(arguments[0]);
    return 5 + (work(8) & 0);
}

static int loses_its_file_to_another(void) {
    char name[80];
    snprintf(name, sizeof name, "%s.new", arguments[0]);
    int file = open(name, O_CREAT | O_WRONLY, 0755);
    for (int i = 0; i < 1000; i++)
        if (write(file, "other bytes, other bytes, other bytes, other bytes, other bytes\n", 64) != 64) return 1;
    close(file);
    rename(name, arguments[0]);
    return 6 + (work(8) & 0);
}

static int file_deleted(void) {
    return copied(0);
}

static int file_replaced(void) {
    return copied(1);
}

MODES(MODE(values), MODE(next_instruction), MODE(own_loop), MODE(across_pages), MODE(written_or_executed),
      MODE(second_mapping), MODE(into_the_file), MODE(from_a_pipe), MODE(proc_self_mem), MODE(process_vm_write),
      MODE(by_a_child), MODE(by_a_thread), MODE(thrown_away), MODE(mapped_over), MODE(files_in_turn), MODE(moved),
      MODE(unmapped), MODE(file_deleted), MODE(file_replaced), MODE(loses_its_file), MODE(loses_its_file_to_another));
MAIN
