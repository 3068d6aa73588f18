// Signals: nested, timed, blocked, taken from a file; frames that are forged; faults that are survived.
#include <pthread.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <ucontext.h>

#include "torture.h"

static void catch(int number, void *handler, int flags) {
    struct sigaction action = {.sa_flags = flags | SA_SIGINFO};
    *(void **)&action.sa_sigaction = handler;
    sigaction(number, &action, 0);
}

static void deeper(int number) {
    static volatile int depth;
    if (++depth < 300) raise(number);
    counted++;
}

static int nested(void) {
    catch(SIGUSR1, deeper, SA_NODEFER);
    raise(SIGUSR1);
    printf("%d\n", counted);
    return 0;
}

static void interval(int which, int us) {
    struct itimerval value = {{0, us}, {0, us}};
    setitimer(which, &value, 0);
}

static void alarm_once(int us) {
    struct itimerval value = {{0, 0}, {0, us}};
    setitimer(ITIMER_REAL, &value, 0);
}

static int alarms(void) {
    signal(SIGALRM, count);
    interval(ITIMER_REAL, 1000);
    while (counted < 20) work(3);
    interval(ITIMER_REAL, 0);
    return puts("enough") < 0;
}

static int alarms_of_cpu_time(void) {
    signal(SIGVTALRM, count);
    interval(ITIMER_VIRTUAL, 4000);
    while (counted < 3) work(3);
    interval(ITIMER_VIRTUAL, 0);
    return puts("enough") < 0;
}

static int timers(void) {
    timer_t timer;
    struct sigevent how = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    struct itimerspec when = {{0, 1000000}, {0, 1000000}};
    signal(SIGRTMIN, count);
    timer_create(CLOCK_MONOTONIC, &how, &timer);
    timer_settime(timer, 0, &when, 0);
    while (counted < 20) work(3);
    timer_delete(timer);
    return puts("enough") < 0;
}

static void elsewhere(void) {
    static const char text[] = "elsewhere\n";
    _exit(write(1, text, sizeof text - 1) == sizeof text - 1 ? 9 : 1);
}

static void point_elsewhere(ucontext_t *to, uintptr_t stack) {
    to->uc_mcontext.gregs[REG_RIP] = (greg_t)elsewhere;
    to->uc_mcontext.gregs[REG_RSP] = (greg_t)((stack & ~15ul) - 8);
}

static void change_frame(int number, siginfo_t *info, ucontext_t *frame) {
    (void)number, (void)info;
    point_elsewhere(frame, frame->uc_mcontext.gregs[REG_RSP] - PAGE);
}

static int frame_changed(void) {
    catch(SIGUSR1, change_frame, 0);
    raise(SIGUSR1);
    return 1;
}

static void return_through(void *frame) {
    __asm__ volatile("mov %0, %%rsp\n mov $15, %%eax\n syscall" : : "r"(frame) : "memory");
    __builtin_unreachable();
}

static char frames[4 * PAGE] __attribute__((aligned(64)));

static void copy_frame(int number, siginfo_t *info, ucontext_t *frame) {
    (void)number, (void)info;
    ucontext_t *copy = (ucontext_t *)(frames + 2 * PAGE);
    memcpy(copy, frame, sizeof *copy);
    copy->uc_mcontext.fpregs = 0;
    point_elsewhere(copy, (uintptr_t)copy - 256);
    return_through(copy);
}

static int frame_copied(void) {
    catch(SIGUSR1, copy_frame, 0);
    raise(SIGUSR1);
    return 1;
}

static int frame_into_the_kernel(void) {
    ucontext_t *frame = (ucontext_t *)frames;
    frame->uc_mcontext.gregs[REG_RIP] = (greg_t)0xffffffff81000000;
    frame->uc_mcontext.gregs[REG_RSP] = (greg_t)(frames + PAGE);
    frame->uc_mcontext.gregs[REG_CSGSFS] = 0x33 | 0x2bL << 48;
    return_through(frame);
    return 1;
}

static int jumps_out(void) {
    static const int numbers[] = {SIGUSR1, SIGFPE, SIGILL};
    for (int i = 0; i < 3; i++) signal(numbers[i], land);
    for (volatile int i = 0; i < 12; i++) {
        int from = sigsetjmp(landing, 1);
        if (from) counted += from;
        else if (i % 3 == 0) raise(SIGUSR1);
        else if (i % 3 == 1) __asm__ volatile("xor %%ecx, %%ecx\n cltd\n idivl %%ecx" : : : "eax", "ecx", "edx", "cc");
        else __asm__ volatile("ud2");
    }
    printf("%d\n", counted);
    return 0;
}

// Data and code of a file that has become shorter, and of pages that are gone.
static int jumps_out_of_lost_pages(void) {
    int file = memfd_create("cut", 0);
    signal(SIGBUS, land);
    signal(SIGSEGV, land);
    for (volatile int i = 0; i < 6; i++) {
        if (ftruncate(file, PAGE)) return 1;
        uint8_t *shared = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        put_odd(shared, i);
        uint8_t *code = mmap(0, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
        counted += call(code, i);
        if (i < 3 && ftruncate(file, 0)) return 1;
        if (i >= 3) munmap(shared, PAGE), munmap(code, PAGE);
        int from = sigsetjmp(landing, 1);
        if (from) counted += 100 * from;
        else if (i % 3 == 0) counted += shared[1];
        else if (i % 3 == 1) counted += call(code + 5, i);
        else counted += (int)write(1, shared, 1) + call(code + 4, i);
    }
    printf("%d\n", counted);
    return 0;
}

// Code that ran, of a file that has become shorter since.
static int cut_code(void) {
    int file = memfd_create("cut", 0);
    signal(SIGBUS, land);
    for (volatile int i = 0; i < 4; i++) {
        if (ftruncate(file, PAGE)) return 1;
        uint8_t *shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        put_odd(shared, i);
        uint8_t *code = mmap(0, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
        counted += call(code, i);
        if (ftruncate(file, 0)) return 1;
        if (sigsetjmp(landing, 1)) counted += 100;
        else counted += call(code, i);
    }
    printf("%d\n", counted);
    return 0;
}

static void step_over(int number, siginfo_t *info, ucontext_t *frame) {
    (void)number, (void)info;
    const uint8_t *at = (const uint8_t *)frame->uc_mcontext.gregs[REG_RIP];
    frame->uc_mcontext.gregs[REG_RIP] += *at == 0xf4 ? 1 : 2;  // HLT or UD2
    counted++;
}

static int steps_over(void) {
    catch(SIGSEGV, step_over, 0);
    catch(SIGILL, step_over, 0);
    for (int i = 0; i < 5; i++) __asm__ volatile("hlt\n ud2\n hlt\n nop");
    printf("%d\n", counted);
    return 0;
}

static int breakpoints(void) {
    signal(SIGTRAP, count);
    __asm__ volatile("int3\n nop\n int3\n .byte 0xcd, 3");
    raise(SIGTRAP);
    kill(getpid(), SIGTRAP);
    printf("%d\n", counted);
    return 0;
}

static int breakpoint_of_ice(void) {
    signal(SIGTRAP, land);
    if (sigsetjmp(landing, 1)) counted++;
    else __asm__ volatile(".byte 0xf1");
    printf("%d\n", counted);
    return 0;
}

// Sets TF: a trap after each instruction except the one that sets it.
static int own_steps(void) {
    signal(SIGTRAP, count);
    __asm__ volatile("pushf\n orl $0x100, (%%rsp)\n popf\n nop\n nop\n nop\n pushf\n andl $~0x100, (%%rsp)\n popf"
                     : : : "memory", "cc");
    printf("%d\n", counted);
    return 0;
}

static int from_a_file(void) {
    sigset_t set;
    struct signalfd_siginfo info;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, 0);
    int file = signalfd(-1, &set, 0), number;
    raise(SIGUSR1);
    if (read(file, &info, sizeof info) != sizeof info) return 1;
    raise(SIGUSR1);
    sigwait(&set, &number);
    printf("%d %d\n", info.ssi_signo == SIGUSR1, number == SIGUSR1);
    return 0;
}

// The same with the signal that single steps use.
static int traps_waited_for(void) {
    sigset_t set, pending;
    struct signalfd_siginfo info;
    struct timespec none = {0, 0}, second = {1, 0};
    sigemptyset(&set);
    sigaddset(&set, SIGTRAP);
    sigprocmask(SIG_BLOCK, &set, 0);
    int file = signalfd(-1, &set, SFD_NONBLOCK), number = 0;
    int empty = read(file, &info, sizeof info) < 0 && errno == EAGAIN;
    int nothing = sigtimedwait(&set, 0, &none) < 0 && errno == EAGAIN;
    raise(SIGTRAP);
    int got = read(file, &info, sizeof info) == sizeof info && info.ssi_signo == SIGTRAP;
    raise(SIGTRAP);
    sigpending(&pending);
    int waits = sigismember(&pending, SIGTRAP);
    sigwait(&set, &number);
    raise(SIGTRAP);
    int taken = sigtimedwait(&set, 0, &second) == SIGTRAP;
    printf("%d %d %d %d %d %d\n", empty, nothing, got, waits, number == SIGTRAP, taken);
    return 0;
}

// A trap that stays pending during much code, perhaps until the recorder has detached.
static int trap_that_waits_long(void) {
    sigset_t set, pending;
    siginfo_t info;
    sigemptyset(&set);
    sigaddset(&set, SIGTRAP);
    sigprocmask(SIG_BLOCK, &set, 0);
    raise(SIGTRAP);
    for (int i = 0; i < 4; i++) counted += work(18), getppid();
    sigpending(&pending);
    printf("%d", sigismember(&pending, SIGTRAP));
    raise(SIGTRAP);
    printf(" %d", sigwaitinfo(&set, &info) == SIGTRAP);
    sigpending(&pending);
    printf(" %d\n", sigismember(&pending, SIGTRAP));
    return 0;
}

// A sent SIGTRAP is ignored; one of an instruction ends the program, perhaps after the recorder has detached.
static int breakpoint_while_ignored(void) {
    limit(RLIMIT_CORE, 0);
    signal(SIGTRAP, SIG_IGN);
    for (int i = 0; i < 4; i++) counted += work(18), getppid();
    raise(SIGTRAP);
    printf("%d\n", counted);
    __asm__ volatile("int3");
    return 0;
}

static volatile int seen;

static void see(int number, siginfo_t *info, void *frame) {
    (void)frame;
    seen += number == SIGTRAP && info->si_pid == getpid();
}

static void *waits_for_a_trap(void *set) {
    siginfo_t info;
    counted += sigwaitinfo(set, &info) == SIGTRAP && info.si_code == SI_USER && info.si_pid == getpid();
    return 0;
}

static void *reads_a_trap(void *set) {
    struct signalfd_siginfo info;
    int file = signalfd(-1, set, 0);
    counted += read(file, &info, sizeof info) == sizeof info && info.ssi_signo == SIGTRAP &&
               info.ssi_code == SI_USER && info.ssi_pid == (uint32_t)getpid();
    close(file);
    return 0;
}

static void *lets_traps_come(void *set) {
    pthread_sigmask(SIG_UNBLOCK, set, 0);
    for (int i = 0; i < 2000 && !seen; i++) sleep_ms(1);
    return 0;
}

static void *lets_traps_come_at_work(void *set) {
    pthread_sigmask(SIG_UNBLOCK, set, 0);
    while (seen < 2) counted += work(2) - 1;
    return 0;
}

// Sent to the process: a thread gets it that waits for it, already or later, or one that does not block it.
static int traps_of_the_process(void) {
    void *(*const takers[])(void *) = {waits_for_a_trap, reads_a_trap, lets_traps_come, lets_traps_come_at_work};
    sigset_t set, pending;
    pthread_t thread;
    sigemptyset(&set);
    sigaddset(&set, SIGTRAP);
    sigprocmask(SIG_BLOCK, &set, 0);
    catch(SIGTRAP, see, 0);
    for (int i = 0; i < 4; i++) {
        pthread_create(&thread, 0, takers[i], &set);
        sleep_ms(100);
        kill(getpid(), SIGTRAP);
        pthread_join(thread, 0);
    }
    for (int i = 0; i < 2; i++) {
        kill(getpid(), SIGTRAP);
        sigpending(&pending);
        counted += sigismember(&pending, SIGTRAP);
        pthread_create(&thread, 0, takers[i], &set);
        pthread_join(thread, 0);
    }
    sigpending(&pending);
    printf("%d %d %d\n", counted, seen, sigismember(&pending, SIGTRAP));
    return 0;
}

// The program must not notice that single steps change the ignored signal; over exec, too.
static int traps_ignored(void) {
    struct sigaction before = {.sa_handler = SIG_DFL}, now = {.sa_handler = SIG_IGN};
    if (arguments[2]) {
        raise(SIGTRAP);
        sigaction(SIGTRAP, 0, &before);
        return printf("%d\n", before.sa_handler == SIG_IGN) < 0;
    }
    sigaction(SIGTRAP, &now, &before);
    counted += before.sa_handler == SIG_DFL;
    work(4);
    raise(SIGTRAP);
    kill(getpid(), SIGTRAP);
    if (!fork()) {
        kill(getpid(), SIGTRAP);
        execl(arguments[0], arguments[0], "traps_ignored", "again", (char *)0);
    }
    counted += child_status() == 0;
    now.sa_handler = count;
    sigaction(SIGTRAP, &now, &before);
    counted += before.sa_handler == SIG_IGN;
    raise(SIGTRAP);
    printf("%d\n", counted);
    return 0;
}

static void breakpoint(void) {
    __asm__ volatile("int3");
}

static void own_step(void) {
    __asm__ volatile("pushf\n orl $0x100, (%%rsp)\n popf\n nop\n nop" : : : "memory", "cc");
}

// A trap that an instruction makes ends a process that blocks or ignores it, whatever handler there is.
static int traps_that_kill(void) {
    static void (*const traps[])(void) = {breakpoint, own_step};
    for (int i = 0; i < 6; i++) {
        if (fork()) {
            counted += child_status() == -SIGTRAP;
            continue;
        }
        limit(RLIMIT_CORE, 0);
        signal(SIGTRAP, i / 2 == 1 ? SIG_IGN : i / 2 == 2 ? SIG_DFL : count);
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGTRAP);
        if (i / 2 == 0) sigprocmask(SIG_BLOCK, &set, 0);
        traps[i % 2]();
        _exit(0);
    }
    printf("%d\n", counted);
    return 0;
}

__attribute__((noinline)) static int bottomless(int depth) {
    volatile char kept[2048];
    kept[0] = (char)depth;
    return bottomless(depth + 1) + kept[0];
}

// Recursion without a packet, ended by the fault at the stack's end: a handler on a stack of its own.
static int stack_overflow(void) {
    static char other[65536];
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    struct sigaction action = {.sa_handler = land, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, 0);
    sigaction(SIGSEGV, &action, 0);
    limit(RLIMIT_STACK, 256 << 10);
    for (volatile int i = 0; i < 3; i++)
        if (sigsetjmp(landing, 1)) counted++;
        else bottomless(0);
    printf("%d %d\n", counted, work(6));
    return 0;
}

// A loop without a packet, ended by a timer.
static int turning(void) {
    signal(SIGALRM, land);
    for (volatile int i = 0; i < 3; i++) {
        if (sigsetjmp(landing, 1)) {
            counted++;
            continue;
        }
        alarm_once(3000);
        __asm__ volatile("1: inc %%rax\n lea 1(%%rax), %%rdx\n nop\n jmp 1b" : : : "rax", "rdx", "cc");
    }
    printf("%d %d\n", counted, work(6));
    return 0;
}

static ucontext_t contexts[3];

static void coroutine(int own) {
    for (int i = 0; i < 10; i++) {
        counted += own;
        swapcontext(&contexts[own], &contexts[3 - own]);
    }
}

static int coroutines(void) {
    static char stacks[3][65536];
    for (int i = 1; i < 3; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = sizeof stacks[i];
        contexts[i].uc_link = &contexts[0];
        makecontext(&contexts[i], (void (*)(void))coroutine, 1, i);
    }
    swapcontext(&contexts[0], &contexts[1]);
    printf("%d\n", counted);
    return 0;
}

static int broken_pipe(void) {
    int ends[2];
    if (pipe(ends)) return 1;
    close(ends[0]);
    return write(ends[1], "x", 1) > 0;
}

static int aborts(void) {
    abort();
}

MODES(MODE(nested), MODE(alarms), MODE(alarms_of_cpu_time), MODE(timers), MODE(frame_changed), MODE(frame_copied),
      MODE(frame_into_the_kernel), MODE(jumps_out), MODE(jumps_out_of_lost_pages), MODE(cut_code), MODE(steps_over),
      MODE(breakpoints), MODE(breakpoint_of_ice), MODE(own_steps), MODE(from_a_file), MODE(traps_waited_for),
      MODE(trap_that_waits_long), MODE(breakpoint_while_ignored), MODE(traps_of_the_process), MODE(traps_ignored),
      MODE(traps_that_kill), MODE(stack_overflow), MODE(turning), MODE(coroutines), MODE(broken_pipe), MODE(aborts));
MAIN
