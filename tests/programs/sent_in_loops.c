// A child sends signals that instructions may also raise, while the parent runs loops of one block, 1000 iterations
// each.
#include "start.h"

void round_taken(void), round_jump(void), round_return(void);
__asm__(".globl round_taken, loop_taken, round_jump, loop_jump, round_return, loop_return\n"
        "round_taken: mov $1000, %ecx\n"
        "loop_taken: nop\ndec %ecx\njnz loop_taken\nret\n"
        "round_jump: mov $1000, %ecx\nlea loop_jump(%rip), %rdx\nlea 1f(%rip), %rsi\n"
        "loop_jump: nop\ndec %ecx\ncmovz %rsi, %rdx\njmp *%rdx\n1: ret\n"
        "round_return: mov $1000, %ecx\nlea loop_return(%rip), %rdx\nlea 1f(%rip), %rsi\n"
        "loop_return: nop\ndec %ecx\ncmovz %rsi, %rdx\npush %rdx\nret\n1: ret\n");

static volatile int done;

static void on_signal_sent(int number) {
    (void)number;
}

static void on_end(int number) {
    (void)number;
    done = 1;
}

int main(int argc, char **argv, char **envp) {
    (void)argc, (void)argv, (void)envp;
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (int i = 0; i < 4; i++) on_signal(numbers[i], on_signal_sent, 0);
    on_signal(SIGUSR1, on_end, 0);
    long parent = CALL(getpid, 0, 0, 0, 0);
    if (CALL(fork, 0, 0, 0, 0) == 0) {
        long wait[2] = {0, 200000};
        for (int i = 0; i < 200; i++) {
            CALL(kill, parent, numbers[i % 4], 0, 0);
            CALL(nanosleep, wait, 0, 0, 0);
        }
        CALL(kill, parent, SIGUSR1, 0, 0);
        return 0;
    }
    while (!done) {
        round_taken();
        round_jump();
        round_return();
    }
    return 0;
}
