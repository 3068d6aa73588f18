// Stands in for a QEMU with version SPOKEN of the plugin interface (which accepts none below LEAST): the
// functions, their types and the callbacks' arguments as that version's header or documentation has them. It
// "executes" two blocks of its own code, the second of which ends the process with 5.
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define API __attribute__((visibility("default"), used))

extern const uint8_t block_1[], block_2[], end_of_blocks[];
__asm__(".text\n"
        ".globl block_1, block_2, end_of_blocks\n"
        "block_1: mov $231, %eax\n mov $5, %edi\n jmp block_2\n"
        ".skip 16, 0x90\n"
        "block_2: nop\n syscall\n"
        "end_of_blocks:\n");

struct insn { const uint8_t *at; size_t size; };
struct tb { size_t count; struct insn insns[3]; };
static struct tb blocks[2];

typedef void (*executed_t)(unsigned int vcpu, void *data);
static executed_t executed[2];
static void *executed_data[2];
static struct tb *translating;

API size_t qemu_plugin_tb_n_insns(const struct tb *tb) { return tb->count; }
API uint64_t qemu_plugin_tb_vaddr(const struct tb *tb) { return (uint64_t)tb->insns[0].at; }
API struct insn *qemu_plugin_tb_get_insn(struct tb *tb, size_t index) { return &tb->insns[index]; }
API uint64_t qemu_plugin_insn_vaddr(const struct insn *insn) { return (uint64_t)insn->at; }
API size_t qemu_plugin_insn_size(const struct insn *insn) { return insn->size; }

#if SPOKEN < 3
API const void *qemu_plugin_insn_data(const struct insn *insn) { return insn->at; }
#else
API size_t qemu_plugin_insn_data(const struct insn *insn, void *into, size_t size) {
    if (size > insn->size) size = insn->size;
    memcpy(into, insn->at, size);
    return size;
}
#endif

API void qemu_plugin_register_vcpu_tb_exec_cb(struct tb *tb, executed_t call, int flags, void *data) {
    (void)flags;
    executed[tb - blocks] = call;
    executed_data[tb - blocks] = data;
}
API void qemu_plugin_register_vcpu_insn_exec_cb(struct insn *insn, executed_t call, int flags, void *data) {
    (void)insn, (void)call, (void)flags, (void)data;
}

#define ARGUMENTS uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t
#if SPOKEN < 7
typedef void (*translated_t)(uint64_t id, struct tb *);
typedef void (*called_t)(uint64_t id, unsigned int vcpu, int64_t number, ARGUMENTS);
typedef void (*returned_t)(uint64_t id, unsigned int vcpu, int64_t number, int64_t result);
#define DATA
#define FIRST id,
#define LAST
#else
typedef void (*translated_t)(struct tb *, void *);
typedef void (*called_t)(unsigned int vcpu, int64_t number, ARGUMENTS, void *);
typedef void (*returned_t)(unsigned int vcpu, int64_t number, int64_t result, void *);
#define DATA , void *data
#define FIRST
#define LAST , 0
API void qemu_plugin_set_pc(uint64_t address) { (void)address; }
#endif

static translated_t translated;
static called_t called;
static returned_t returned;
API void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, translated_t call DATA) { (void)id, translated = call; }
API void qemu_plugin_register_atexit_cb(uint64_t id, void *call, void *data) { (void)id, (void)call, (void)data; }
API void qemu_plugin_register_vcpu_syscall_cb(uint64_t id, called_t call DATA) { (void)id, called = call; }
API void qemu_plugin_register_vcpu_syscall_ret_cb(uint64_t id, returned_t call DATA) { (void)id, returned = call; }

#if SPOKEN == 1
API int qemu_plugin_n_vcpus(void) { return 1; }
#else
API void *qemu_plugin_scoreboard_new(size_t size) { return (void)size, (void *)0; }
#endif

struct info {
    const char *target;
    struct { int min, cur; } version;
    bool system;
};

int main(int count, char **argv) {
    if (count > 1 && !strcmp(argv[1], "--version")) return printf("qemu-x86_64 version %d.0\n", SPOKEN) < 0;
    void *plugin = count > 2 ? dlopen(argv[2], RTLD_NOW) : 0;
    if (!plugin) return 2;
    int version = *(int *)dlsym(plugin, "qemu_plugin_version");
    if (version < LEAST || version > SPOKEN) {
        fprintf(stderr, "plugin requires API version %d, not %d to %d\n", version, LEAST, SPOKEN);
        return 1;
    }
    uint64_t id = 42;
    struct info info = {"x86_64", {LEAST, SPOKEN}, false};
    int (*install)(uint64_t, const struct info *, int, char **) = dlsym(plugin, "qemu_plugin_install");
    if (install(id, &info, 0, 0)) return 1;
    const uint8_t *at = block_1;
    blocks[0] = (struct tb){3, {{at, 5}, {at + 5, 5}, {at + 10, 2}}};
    at = block_2;
    blocks[1] = (struct tb){2, {{at, 1}, {at + 1, 2}}};
    for (int i = 0; i < 2; i++) {
        translated(FIRST translating = &blocks[i] LAST);
        executed[i](0, executed_data[i]);
    }
    called(FIRST 0, 39, 0, 0, 0, 0, 0, 0, 0, 0 LAST);
    returned(FIRST 0, 39, 1 LAST);
    executed[0](0, executed_data[0]);
    executed[1](0, executed_data[1]);
    called(FIRST 0, 231, 5, 0, 0, 0, 0, 0, 0, 0 LAST);
    return 3;
}
