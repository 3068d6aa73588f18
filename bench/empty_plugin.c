// A QEMU plugin with a callback at each block that does nothing: no plugin that looks at each block can be cheaper.
// QEMU's own header is in no package, so what is used of its interface is declared here.
#include <stdint.h>

struct block;
typedef uint64_t plugin;

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin, void (*)(plugin, struct block *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct block *, void (*)(unsigned, void *), int, void *);

int qemu_plugin_version = VERSION;

static void started(unsigned cpu, void *with) {
    (void)cpu;
    (void)with;
}

static void translated(plugin id, struct block *block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(block, started, 0, 0);
}

int qemu_plugin_install(plugin id, const void *info, int argc, char **argv) {
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
