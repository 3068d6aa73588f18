// Copies what QEMU writes to its stream of fopencookie(3) to the files LOG_COPY.0, LOG_COPY.1 and so on, by processor.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PROCESSORS 16

static cookie_write_function_t *original;
static int copies[PROCESSORS];

// Returns the index of the processor that this thread runs, by QEMU's own functions; -1 if there is none.
static int current_index(void) {
    void **current = dlsym(RTLD_DEFAULT, "current_cpu");
    void *(*processor)(int) = dlsym(RTLD_DEFAULT, "qemu_get_cpu");
    for (int index = 0; *current && index < PROCESSORS; index++)
        if (processor(index) == *current) return index;
    return -1;
}

static ssize_t write_both(void *cookie, const char *bytes, size_t size) {
    int index = current_index();
    if (index >= 0 && !copies[index]) {
        char path[4096];
        snprintf(path, sizeof path, "%s.%d", getenv("LOG_COPY"), index);
        copies[index] = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    }
    if (index >= 0 && write(copies[index], bytes, size) != (ssize_t)size) abort();
    return original(cookie, bytes, size);
}

FILE *fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions) {
    FILE *(*next)(void *, const char *, cookie_io_functions_t) = dlsym(RTLD_NEXT, "fopencookie");
    original = functions.write;
    functions.write = write_both;
    return next(cookie, mode, functions);
}
