// REP string instructions: each counts once, whatever its count, also zero.
#include "start.h"

static char from[300], to[300];

static long fill(void *where, int byte, long count) {
    __asm__ volatile("rep stosb" : "+D"(where), "+c"(count) : "a"(byte) : "memory");
    return count;
}

static void copy(void *where, const void *what, long words) {
    __asm__ volatile("rep movsq" : "+D"(where), "+S"(what), "+c"(words) : : "memory");
}

static long find(const char *where, int byte, long count) {
    __asm__ volatile("repne scasb" : "+D"(where), "+c"(count) : "a"(byte) : "memory", "cc");
    return count;
}

static long equal(const char *a, const char *b, long count) {
    __asm__ volatile("repe cmpsb" : "+D"(a), "+S"(b), "+c"(count) : : "memory", "cc");
    return count;
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    fill(from, 'x', 300);
    from[200] = 'y';
    copy(to, from, 30);
    copy(to, from, 0);
    fill(to, 'z', 0);
    say_number("copied", to[239] == 'x' && to[240] == 0);
    say_number("found", 300 - find(from, 'y', 300));
    say_number("equal", 300 - equal(from, to, 300));
    say_number("nothing", find(from, 'x', 0));
    return 0;
}
