// Shared libraries that come and go: another one where the last was, in turn.
#include <dlfcn.h>

#include "torture.h"

static int reused(void) {
    static const char *const names[] = {FIRST, SECOND};
    int sum = 0;
    for (int i = 0; i < 12; i++) {
        void *library = dlopen(names[i % 2], RTLD_NOW);
        if (!library) return puts(dlerror()) + 1000;
        sum += ((Function)(uintptr_t)dlsym(library, "of_the_library"))(i);
        dlclose(library);
    }
    printf("%d\n", sum);
    return 0;
}

MODES(MODE(reused));
MAIN
