/* Mounts something over `tool` in a mount namespace of its own and runs it. argv: how, the other file. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define CANNOT 77

static int copy(const char *from, const char *to) {
    static char bytes[1 << 16];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT, 0755);
    ssize_t size;
    while ((size = read(in, bytes, sizeof bytes)) > 0)
        if (write(out, bytes, size) != size) return -1;
    close(in);
    return close(out);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS)) return CANNOT;
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) return CANNOT;
    if (!strcmp(argv[1], "bind")) {
        if (mount(argv[2], "folder/tool", NULL, MS_BIND, NULL)) return CANNOT;
    } else if (!strcmp(argv[1], "tmpfs")) {
        if (mount("none", "folder", "tmpfs", 0, NULL)) return CANNOT;
        if (copy(argv[2], "folder/tool")) return 3;
    } else {
        if (mount("none", "scratch", "tmpfs", 0, NULL)) return CANNOT;
        mkdir("scratch/upper", 0755);
        mkdir("scratch/work", 0755);
        const char *options = "lowerdir=folder,upperdir=scratch/upper,workdir=scratch/work";
        if (mount("none", "folder", "overlay", 0, options)) return CANNOT;
        unlink("folder/tool");
        if (copy(argv[2], "folder/tool")) return 3;
    }
    execl("folder/tool", "tool", (char *)NULL);
    return 4;
}
