// Two threads take turns. The thread that waits executes few instructions while the other one executes many, and
// neither makes a system call.
#include <pthread.h>
#include <stdatomic.h>

enum { TURNS = 20 };

static atomic_int turn;

__attribute__((noinline)) static void take_turn(void) {
    for (volatile int i = 0; i < 20000; i++) {
    }
}

// An indirect call has a packet, and so an exact time.
static void (*volatile call)(void) = take_turn;

static void *run(void *parity) {
    for (int mine = parity != 0; mine < TURNS; mine += 2) {
        int expected = mine;
        while (!atomic_compare_exchange_strong(&turn, &expected, mine)) {
            expected = mine;
            for (int i = 0; i < 10; i++) __builtin_ia32_pause();
        }
        call();
        atomic_store(&turn, mine + 1);
    }
    return 0;
}

int main(void) {
    pthread_t other;
    pthread_create(&other, 0, run, &turn);
    run(0);
    pthread_join(other, 0);
}
