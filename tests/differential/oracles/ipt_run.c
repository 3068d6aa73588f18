// Decodes a raw PT stream with libipt, for comparison.
//
// usage: ipt_run MODE TRACE [-c FAMILY MODEL STEPPING] [-t MTC_FREQ NOM_FREQ CPUID15_EAX CPUID15_EBX]
//                [-f FIRST LAST] [-n REPETITIONS] [-s FILE OFFSET SIZE ADDRESS]...
//
// MODE instructions, blocks or packets writes records to standard output (see struct record); measure-blocks,
// measure-instructions and measure-packets throw away what they decode, and print a line "seconds instructions items
// errors" a repetition, seconds being CPU time and items what the mode names; path prints a line "instructions hash
// errors", the hash being that of truth files over the instructions' addresses.
#include <intel-pt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind { INSTRUCTION = 1, BLOCK = 2, EVENT = 3, ERROR = 4, PACKET = 5 };

// What `detail`, `value` and `extra` hold:
// INSTRUCTION class, ip, time    BLOCK instructions, first ip, last ip    EVENT type, ip or ~0, time
// ERROR code, stream offset, ip  PACKET type, stream offset, size
struct record {
    uint32_t kind, detail;
    uint64_t value, extra;
};

static const uint64_t NO_IP = ~UINT64_C(0);

static void put(uint32_t kind, uint32_t detail, uint64_t value, uint64_t extra) {
    struct record record = {kind, detail, value, extra};
    if (fwrite(&record, sizeof record, 1, stdout) != 1) exit(3);
}

static void fail(const char *what, int status) {
    fprintf(stderr, "ipt_run: %s: %s\n", what, pt_errstr(pt_errcode(status)));
    exit(1);
}

static uint64_t event_ip(const struct pt_event *event) {
    if (event->ip_suppressed) return NO_IP;
    switch (event->type) {
        case ptev_enabled: return event->variant.enabled.ip;
        case ptev_disabled: return event->variant.disabled.ip;
        case ptev_async_disabled: return event->variant.async_disabled.at;
        case ptev_async_branch: return event->variant.async_branch.from;
        case ptev_overflow: return event->variant.overflow.ip;
        case ptev_exec_mode: return event->variant.exec_mode.ip;
        case ptev_tsx: return event->variant.tsx.ip;
        case ptev_ptwrite: return event->variant.ptwrite.ip;
        default: return NO_IP;
    }
}

struct path {
    uint64_t instructions, hash, errors;
    int hashed;
};

static void extend(struct path *path, uint64_t ip) {
    path->instructions++;
    if (!path->hashed) return;
    uint64_t x = (ip ^ (ip >> 29)) * UINT64_C(0xBF58476D1CE4E5B9);
    path->hash = path->hash * UINT64_C(0x9E3779B97F4A7C15) + (x ^ (x >> 32));
}

// Into `path` if there is one, else as records.
static int instructions_to(struct pt_insn_decoder *decoder, int status, uint64_t *ip, struct path *path) {
    for (;;) {
        uint64_t time = 0;
        while (status & pts_event_pending) {
            struct pt_event event;
            status = pt_insn_event(decoder, &event, sizeof event);
            if (status < 0) return status;
            if (!path) put(EVENT, event.type, event_ip(&event), event.has_tsc ? event.tsc : 0);
        }
        if (status & pts_eos) return -pte_eos;
        struct pt_insn instruction;
        memset(&instruction, 0, sizeof instruction);
        status = pt_insn_next(decoder, &instruction, sizeof instruction);
        *ip = instruction.ip;
        // An instruction may have been reached before the error.
        int reached = status >= 0 || instruction.iclass != ptic_error;
        if (reached && path) extend(path, instruction.ip);
        if (reached && !path) {
            pt_insn_time(decoder, &time, NULL, NULL);
            put(INSTRUCTION, instruction.iclass, instruction.ip, time);
        }
        if (status < 0) return status;
    }
}

static void instructions(const struct pt_config *config, struct pt_image *image, struct path *path) {
    struct pt_insn_decoder *decoder = pt_insn_alloc_decoder(config);
    if (!decoder) fail("decoder", -pte_nomem);
    pt_insn_set_image(decoder, image);
    uint64_t last_sync = NO_IP;
    for (;;) {
        uint64_t offset = 0, sync = 0, ip = 0;
        int status = pt_insn_sync_forward(decoder);
        if (status >= 0) status = instructions_to(decoder, status, &ip, path);
        else if (status != -pte_eos) {
            pt_insn_get_sync_offset(decoder, &sync);
            if (sync == last_sync) break;  // no progress
            last_sync = sync;
        }
        if (status == -pte_eos) break;
        pt_insn_get_offset(decoder, &offset);
        if (path) path->errors++;
        else put(ERROR, pt_errcode(status), offset, ip);
    }
    pt_insn_free_decoder(decoder);
}

struct counts {
    uint64_t instructions, items, errors;
};

static int blocks_to(struct pt_block_decoder *decoder, int status, int list, struct counts *counts, uint64_t *ip) {
    for (;;) {
        while (status & pts_event_pending) {
            struct pt_event event;
            status = pt_blk_event(decoder, &event, sizeof event);
            if (status < 0) return status;
            if (list) put(EVENT, event.type, event_ip(&event), event.has_tsc ? event.tsc : 0);
        }
        if (status & pts_eos) return -pte_eos;
        struct pt_block block;
        block.ninsn = 0;
        block.ip = 0;
        status = pt_blk_next(decoder, &block, sizeof block);
        *ip = block.ip;
        if (block.ninsn) {
            counts->instructions += block.ninsn;
            counts->items++;
            if (list) put(BLOCK, block.ninsn, block.ip, block.end_ip);
        }
        if (status < 0) return status;
    }
}

static struct counts blocks(const struct pt_config *config, struct pt_image *image, int list) {
    struct counts counts = {0, 0, 0};
    struct pt_block_decoder *decoder = pt_blk_alloc_decoder(config);
    if (!decoder) fail("decoder", -pte_nomem);
    pt_blk_set_image(decoder, image);
    uint64_t last_sync = NO_IP;
    for (;;) {
        uint64_t offset = 0, sync = 0, ip = 0;
        int status = pt_blk_sync_forward(decoder);
        if (status >= 0) status = blocks_to(decoder, status, list, &counts, &ip);
        else if (status != -pte_eos) {
            pt_blk_get_sync_offset(decoder, &sync);
            if (sync == last_sync) break;
            last_sync = sync;
        }
        if (status == -pte_eos) break;
        counts.errors++;
        pt_blk_get_offset(decoder, &offset);
        if (list) put(ERROR, pt_errcode(status), offset, ip);
    }
    pt_blk_free_decoder(decoder);
    return counts;
}

// As records, or counted only.
static struct counts packets(const struct pt_config *config, int list) {
    struct counts counts = {0, 0, 0};
    struct pt_packet_decoder *decoder = pt_pkt_alloc_decoder(config);
    if (!decoder) fail("decoder", -pte_nomem);
    int status = pt_pkt_sync_forward(decoder);
    while (status >= 0) {
        struct pt_packet packet;
        uint64_t offset = 0;
        if (list) pt_pkt_get_offset(decoder, &offset);
        status = pt_pkt_next(decoder, &packet, sizeof packet);
        if (status >= 0) {
            counts.items++;
            if (list) put(PACKET, packet.type, offset, packet.size);
        } else if (status != -pte_eos) {
            counts.errors++;
            if (list) put(ERROR, pt_errcode(status), offset, 0);
            status = pt_pkt_sync_forward(decoder);
        }
    }
    pt_pkt_free_decoder(decoder);
    return counts;
}

static struct counts measured(const char *what, const struct pt_config *config, struct pt_image *image) {
    if (!strcmp(what, "blocks")) return blocks(config, image, 0);
    if (!strcmp(what, "packets")) return packets(config, 0);
    if (strcmp(what, "instructions")) fail(what, -pte_not_supported);
    struct path path = {0, 0, 0, 0};
    instructions(config, image, &path);
    return (struct counts){path.instructions, path.instructions, path.errors};
}

static double cpu_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static uint8_t *load(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) perror(path), exit(1);
    long end = ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(end + 1);
    if (!bytes || fread(bytes, 1, end, file) != (size_t)end) perror(path), exit(1);
    fclose(file);
    *size = end;
    return bytes;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: ipt_run MODE TRACE [options]\n"), 2;
    const char *mode = argv[1];
    struct pt_config config;
    pt_config_init(&config);
    size_t size;
    config.begin = load(argv[2], &size);
    config.end = config.begin + size;
    struct pt_image *image = pt_image_alloc(NULL);
    struct pt_image_section_cache *cache = pt_iscache_alloc(NULL);
    if (!image || !cache) fail("image", -pte_nomem);
    int repetitions = 1;
    for (int i = 3; i < argc; i++) {
        char option = argv[i][0] == '-' ? argv[i][1] : 0;
        uint64_t value[5] = {0};
        int wanted = option == 'c' ? 3 : option == 't' || option == 's' ? 4 : option == 'f' ? 2 : option == 'n';
        if (!wanted || i + wanted >= argc) return fprintf(stderr, "ipt_run: bad option %s\n", argv[i]), 2;
        for (int j = 1; j <= wanted; j++) value[j] = strtoull(argv[i + j], NULL, 0);
        if (option == 'n') repetitions = value[1];
        if (option == 'c') {
            config.cpu.vendor = pcv_intel;
            config.cpu.family = value[1];
            config.cpu.model = value[2];
            config.cpu.stepping = value[3];
            int status = pt_cpu_errata(&config.errata, &config.cpu);
            if (status < 0 && status != -pte_bad_cpu) fail("errata", status);
        }
        if (option == 't') {
            config.mtc_freq = value[1];
            config.nom_freq = value[2];
            config.cpuid_0x15_eax = value[3];
            config.cpuid_0x15_ebx = value[4];
        }
        if (option == 'f') {
            config.addr_filter.config.ctl.addr0_cfg = 1;
            config.addr_filter.addr0_a = value[1];
            config.addr_filter.addr0_b = value[2];
        }
        if (option == 's') {
            int section = pt_iscache_add_file(cache, argv[i + 1], value[2], value[3], value[4]);
            if (section < 0) fail(argv[i + 1], section);
            int status = pt_image_add_cached(image, cache, section, NULL);
            if (status < 0) fail(argv[i + 1], status);
        }
        i += wanted;
    }
    if (!strcmp(mode, "instructions")) instructions(&config, image, NULL);
    else if (!strcmp(mode, "path")) {
        struct path path = {0, 0, 0, 1};
        instructions(&config, image, &path);
        printf("%llu %llu %llu\n", (unsigned long long)path.instructions, (unsigned long long)path.hash,
               (unsigned long long)path.errors);
    }
    else if (!strcmp(mode, "blocks")) blocks(&config, image, 1);
    else if (!strcmp(mode, "packets")) packets(&config, 1);
    else if (!strncmp(mode, "measure-", 8))
        while (repetitions-- > 0) {
            double begin = cpu_seconds();
            struct counts counts = measured(mode + 8, &config, image);
            printf("%.9f %llu %llu %llu\n", cpu_seconds() - begin, (unsigned long long)counts.instructions,
                   (unsigned long long)counts.items, (unsigned long long)counts.errors);
        }
    else return fprintf(stderr, "ipt_run: unknown mode %s\n", mode), 2;
    return fflush(stdout) ? 3 : 0;
}
