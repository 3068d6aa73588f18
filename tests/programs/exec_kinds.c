// Executes this program again in several ways; the new program prints what it sees of itself.
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CANNOT = 77, NOBODY = 65534 };

extern char **environ;

static int copy_itself_to(int to) {
    char part[65536];
    int from = open("/proc/self/exe", O_RDONLY);
    ssize_t size;
    while ((size = read(from, part, sizeof part)) > 0)
        if (write(to, part, size) != size) return -1;
    return close(from);
}

static int open_unlinked(void) {
    char name[] = "unlinked-XXXXXX";
    int writable = mkstemp(name);
    copy_itself_to(writable);
    fchmod(writable, 0755);
    close(writable);
    int file = open(name, O_RDONLY | O_CLOEXEC);
    unlink(name);
    return file;
}

static int open_in_memory(void) {
    int file = memfd_create("clone", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    copy_itself_to(file);
    fcntl(file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL);
    return file;
}

// The user changes, the capabilities stay until the exec.
static int drop_user(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    prctl(PR_SET_KEEPCAPS, 1);
    if (setgid(NOBODY) || setuid(NOBODY)) return -1;
    syscall(SYS_capget, &header, sets);
    for (int i = 0; i < 2; i++) sets[i].effective = sets[i].permitted;
    return syscall(SYS_capset, &header, sets);
}

static int show(const char *mode) {
    char name[4096];
    ssize_t size = readlink("/proc/self/exe", name, sizeof name - 1);
    name[size < 0 ? 0 : size] = 0;
    char *base = strrchr(name, '/');
    int length = base && strstr(base, "unlinked-") ? 9 : -1;
    printf("%s %.*s\n", mode, length, base && mode[0] == 'a' ? base + 1 : "");
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    printf("seals %d user %d\n", fcntl(file, F_GET_SEALS), getuid());
    fflush(stdout);
    return 5;
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "";
    char *next[] = {"again", strcmp(mode, "again") ? "again" : "at last", 0};
    if (!strcmp(mode, "unlinked")) fexecve(open_unlinked(), next, environ);
    if (!strcmp(mode, "memory")) fexecve(open_in_memory(), next, environ);
    if (!strcmp(mode, "by_path")) {
        char path[64];
        sprintf(path, "/proc/self/fd/%d", open_unlinked());
        execv(path, next);
    }
    if (!strcmp(mode, "dropped")) {
        if (drop_user()) return CANNOT;
        next[1] = "dropped_at_last";
        execv("/proc/self/exe", next);
    }
    int status = show(mode);
    if (!strcmp(mode, "again")) execv("/proc/self/exe", next);
    return status;
}
