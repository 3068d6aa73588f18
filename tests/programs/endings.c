// Ends as its argument says; without one with exit code 3. Each failing instruction has a label.
#include "start.h"

void write_there(void), stop_there(void), divide_there(void), far_there(void), jump_there(void);
void illegal_there(void), page_there(void);
__asm__(".type write_there, @function\n.type stop_there, @function\n.type divide_there, @function\n"
        ".type far_there, @function\n"
        "do_write: mov $0xdead0010, %eax\n.globl write_there\nwrite_there: movl $1, (%rax)\nret\n"
        "do_stop: nop\n.globl stop_there\nstop_there: hlt\nret\n"
        "do_divide: xor %edx, %edx\nxor %ecx, %ecx\nmov $5, %eax\n.globl divide_there\ndivide_there: div %ecx\nret\n"
        "do_far: mov $1, %eax\nshl $63, %rax\n.globl far_there\nfar_there: movl $1, (%rax)\nret\n"
        "do_jump: mov $0xdead0020, %eax\n.globl jump_there\njump_there: jmp *%rax\n"
        ".type illegal_there, @function\n.type page_there, @function\n"
        "do_illegal: nop\n.globl illegal_there\nillegal_there: ud2\nret\n"
        "do_page: mov $0x20000010, %eax\n.globl page_there\npage_there: movl $1, (%rax)\nret\n");
void do_write(void), do_stop(void), do_divide(void), do_far(void), do_jump(void), do_illegal(void), do_page(void);

static void send(int number) {
    CALL(kill, CALL(getpid, 0, 0, 0, 0), number, 0, 0);
}

// A page of a file that has none.
static void map_nothing(void) {
    long file = CALL(memfd_create, "empty", 0, 0, 0);
    call6(__NR_mmap, 0x20000000, 4096, 3 /* to read and write */, 0x11 /* MAP_SHARED, MAP_FIXED */, file, 0);
}

static int number_in(const char *text) {
    int number = 0;
    while (*text) number = number * 10 + *text++ - '0';
    return number;
}

static void *place[5];
static volatile int failures;

static void on_segv(int number) {
    (void)number;
    __builtin_longjmp(place, 1);
}

// A handler survives the first failure; the second is the same number of blocks after a system call.
static void do_both(void) {
    void (*volatile each[])(void) = {do_write, do_stop};
    on_signal(SIGSEGV, on_segv, SA_RESETHAND | SA_NODEFER);
    __builtin_setjmp(place);
    CALL(getpid, 0, 0, 0, 0);
    each[failures++]();
}

int main(int argc, char **argv, char **envp) {
    (void)envp;
    say("ending\n");
    switch (argc > 1 ? *argv[1] : 0) {
    case 'w': do_write(); break;
    case 's': do_stop(); break;
    case 'd': do_divide(); break;
    case 'f': do_far(); break;
    case 'j': do_jump(); break;
    case 'k': send(SIGSEGV); break;
    case 't': send(SIGTERM); break;
    case 'b': do_both(); break;
    case 'i': do_illegal(); break;
    case 'p': map_nothing(); do_page(); break;
    case 'x': send(number_in(argv[1] + 1)); break;
    case 'c': {
        long child = CALL(fork, 0, 0, 0, 0);
        if (child == 0) do_write();
        CALL(wait4, child, 0, 0, 0);
        return 7;
    }
    }
    return 3;
}
