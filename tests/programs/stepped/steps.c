// What single steps bite on: flags that are stored, shadows, REP instructions, vsyscalls, INT 80H, the CPU mask,
// restartable sequences, names.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static char from[100000], to[100000];

int main(int count, char **arguments)
{
    unsigned long flags, r11;
    __asm__ volatile("pushfq; pop %0" : "=r"(flags));
    printf("pushf %d\n", (int)(flags >> 8 & 1));
    __asm__ volatile("pushfw; pop %w0" : "=r"(flags));
    printf("pushfw %d\n", (int)(flags >> 8 & 1));
    __asm__ volatile("mov $39, %%eax; syscall; mov %%r11, %0" : "=r"(r11)::"rax", "rcx", "r11");
    printf("syscall %d\n", (int)(r11 >> 8 & 1));
    __asm__ volatile("mov %%ss, %%eax; mov %%eax, %%ss; pushfq; pop %0" : "=r"(flags)::"rax");
    printf("shadowed pushf %d\n", (int)(flags >> 8 & 1));
    __asm__ volatile("mov %%ss, %%ecx; mov $39, %%eax; mov %%ecx, %%ss; syscall; mov %%r11, %0"
                     : "=r"(r11)::"rax", "rcx", "r11");
    printf("shadowed syscall %d\n", (int)(r11 >> 8 & 1));
    __asm__ volatile("mov %%ss, %%eax; mov %%eax, %%ss; jmp 1f; ud2; 1: mov %%eax, %%ss; mov %%eax, %%ss; nop"
        ::: "rax");
    __asm__ volatile("mov %%ss, %%eax; cmp %%eax, %%eax; mov %%eax, %%ss; je 1f; ud2; 1:" ::: "rax", "cc");
    __asm__ volatile("1: loop 1b" ::"c"(3L));
    __asm__ volatile("lea 1f(%%rip), %%rax; push %%rax; ret; 1:" ::: "rax", "memory");
    __asm__ volatile("call 1f; 1: pop %%rax" ::: "rax", "memory");
    printf("branches\n");

    memset(from, 7, sizeof from);
    void *source = from, *target = to;
    long n = sizeof from;
    __asm__ volatile("rep movsb" : "+S"(source), "+D"(target), "+c"(n)::"memory");
    target = to;
    n = 0;
    __asm__ volatile("rep stosb" : "+D"(target), "+c"(n) : "a"(1) : "memory");
    n = 50000;
    target = to;
    __asm__ volatile("repe scasb" : "+D"(target), "+c"(n) : "a"(7) : "memory", "cc");
    printf("rep %d %ld\n", to[99999], n);

    long pid;
    __asm__ volatile("int $0x80" : "=a"(pid) : "0"(20L) : "memory", "r8", "r9", "r10", "r11");
    printf("int80 %d\n", pid == getpid());
    if (count > 1) {
        long (*vsyscall)(long *) = (long (*)(long *))0xffffffffff600400;
        long seconds = 0;
        vsyscall(&seconds);
        printf("vsyscall %d\n", seconds > 1000000000);
        __asm__ volatile("mov $0xffffffffff600400, %%rax; xor %%edi, %%edi; lea 1f(%%rip), %%rcx; "
            "push %%rcx; jmp *%%rax;"
                         "1: jmp 2f; ud2; 2:" ::: "rax", "rdi", "rcx", "r11", "memory");
        printf("%s\n", arguments[1]);
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    printf("cpus %d\n", CPU_COUNT(&set));
    cpu_set_t one = set;
    for (int i = 0, kept = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &one) && kept++)
            CPU_CLR(i, &one);
    sched_setaffinity(0, sizeof one, &one);
    sched_getaffinity(0, sizeof set, &set);
    printf("own %d\n", CPU_COUNT(&set));
    prctl(PR_SET_NAME, "renamed");
    return 0;
}
