// Decodes a raw PT stream of a whole system with libipt: code depends on the address space and on the time.
//
// usage: ipt_system TRACE CODE
//
// CODE holds the code of all address spaces, sorted by time: a struct change each, with its bytes after it. Prints a
// line "instructions hash errors"; the hash is that of truth files over the instructions' addresses. For each of the
// first errors, standard error has a line "error name offset ip".
#include <intel-pt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_SIZE = 4096, SLOTS = 1 << 20, PRINTED_ERRORS = 20 };

static const uint64_t KERNEL_START = UINT64_C(1) << 63;

// From `time` (TSC) on, `size` bytes at `address` are those that follow. `space` is the number of the page with the
// page table, or KERNEL for the upper half of the addresses.
struct change {
    uint64_t time, space, address, size;
};

static const uint64_t KERNEL = UINT32_MAX;

struct page {
    uint64_t space, number;
    uint8_t bytes[PAGE_SIZE], known[PAGE_SIZE];
};

struct memory {
    struct page *pages[SLOTS], *last;
    const uint8_t *next, *end;  // the changes that are still to come
};

static void fail(const char *what, int status) {
    fprintf(stderr, "ipt_system: %s: %s\n", what, pt_errstr(pt_errcode(status)));
    exit(1);
}

static struct page **slot_of(struct memory *memory, uint64_t space, uint64_t number) {
    uint64_t slot = (number * UINT64_C(0x9E3779B97F4A7C15) ^ space * UINT64_C(0xBF58476D1CE4E5B9)) >> 44;
    for (;; slot = (slot + 1) % SLOTS) {
        struct page *page = memory->pages[slot];
        if (!page || (page->space == space && page->number == number)) return &memory->pages[slot];
    }
}

static void write_code(struct memory *memory, const struct change *change, const uint8_t *bytes) {
    for (uint64_t i = 0; i < change->size; i++) {
        uint64_t address = change->address + i, number = address / PAGE_SIZE;
        struct page **page = slot_of(memory, change->space, number);
        if (!*page) {
            *page = calloc(1, sizeof **page);
            if (!*page) fail("memory", -pte_nomem);
            (*page)->space = change->space;
            (*page)->number = number;
        }
        (*page)->bytes[address % PAGE_SIZE] = bytes[i];
        (*page)->known[address % PAGE_SIZE] = 1;
    }
}

static void apply_changes(struct memory *memory, uint64_t time) {
    while (memory->next < memory->end) {
        struct change change;
        memcpy(&change, memory->next, sizeof change);
        if (change.time > time) return;
        write_code(memory, &change, memory->next + sizeof change);
        memory->next += sizeof change + change.size;
    }
}

static size_t read_page(struct memory *memory, uint64_t space, uint64_t address, uint8_t *buffer, size_t size) {
    struct page *page = memory->last;
    if (!page || page->space != space || page->number != address / PAGE_SIZE)
        page = *slot_of(memory, space, address / PAGE_SIZE);
    if (!page) return 0;
    memory->last = page;
    size_t offset = address % PAGE_SIZE;
    if (size > PAGE_SIZE - offset) size = PAGE_SIZE - offset;
    const uint8_t *unknown = memchr(page->known + offset, 0, size);
    if (unknown) size = unknown - (page->known + offset);
    memcpy(buffer, page->bytes + offset, size);
    return size;
}

static int read_code(uint8_t *buffer, size_t size, const struct pt_asid *asid, uint64_t address, void *context) {
    struct memory *memory = context;
    uint64_t space = address >= KERNEL_START ? KERNEL : asid->cr3 / PAGE_SIZE;
    size_t done = read_page(memory, space, address, buffer, size);
    if (done && (address + done) % PAGE_SIZE == 0 && done < size)
        done += read_page(memory, space, address + done, buffer + done, size - done);
    return done ? (int)done : -pte_nomap;
}

struct path {
    uint64_t instructions, hash, errors;
};

static void extend(struct path *path, uint64_t ip) {
    path->instructions++;
    uint64_t x = (ip ^ (ip >> 29)) * UINT64_C(0xBF58476D1CE4E5B9);
    path->hash = path->hash * UINT64_C(0x9E3779B97F4A7C15) + (x ^ (x >> 32));
}

static int follow(struct pt_insn_decoder *decoder, int status, struct memory *memory, struct path *path, uint64_t *ip) {
    for (;;) {
        while (status & pts_event_pending) {
            struct pt_event event;
            status = pt_insn_event(decoder, &event, sizeof event);
            if (status < 0) return status;
            // The recorder changes code only while tracing is disabled.
            if (event.type == ptev_enabled && event.has_tsc) apply_changes(memory, event.tsc);
        }
        if (status & pts_eos) return -pte_eos;
        struct pt_insn instruction;
        memset(&instruction, 0, sizeof instruction);
        status = pt_insn_next(decoder, &instruction, sizeof instruction);
        *ip = instruction.ip;
        if (status >= 0 || instruction.iclass != ptic_error) extend(path, instruction.ip);
        if (status < 0) return status;
    }
}

static struct path decode(const struct pt_config *config, struct memory *memory) {
    struct path path = {0, 0, 0};
    struct pt_image *image = pt_image_alloc(NULL);
    struct pt_insn_decoder *decoder = pt_insn_alloc_decoder(config);
    if (!image || !decoder) fail("decoder", -pte_nomem);
    pt_image_set_callback(image, read_code, memory);
    pt_insn_set_image(decoder, image);
    for (;;) {
        uint64_t ip = 0, offset = 0;
        int status = pt_insn_sync_forward(decoder);
        if (status >= 0) status = follow(decoder, status, memory, &path, &ip);
        if (status == -pte_eos) break;
        pt_insn_get_offset(decoder, &offset);
        if (++path.errors <= PRINTED_ERRORS)
            fprintf(stderr, "error %s %llx %llx\n", pt_errstr(pt_errcode(status)), (unsigned long long)offset,
                    (unsigned long long)ip);
    }
    pt_insn_free_decoder(decoder);
    return path;
}

static uint8_t *load(const char *name, size_t *size) {
    FILE *file = fopen(name, "rb");
    if (!file || fseek(file, 0, SEEK_END)) perror(name), exit(1);
    long end = ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(end + 1);
    if (!bytes || fread(bytes, 1, end, file) != (size_t)end) perror(name), exit(1);
    fclose(file);
    *size = end;
    return bytes;
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: ipt_system TRACE CODE\n"), 2;
    struct pt_config config;
    pt_config_init(&config);
    size_t size;
    config.begin = load(argv[1], &size);
    config.end = config.begin + size;
    static struct memory memory;
    memory.next = load(argv[2], &size);
    memory.end = memory.next + size;
    apply_changes(&memory, 0);
    struct path path = decode(&config, &memory);
    printf("%llu %llu %llu\n", (unsigned long long)path.instructions, (unsigned long long)path.hash,
           (unsigned long long)path.errors);
    return fflush(stdout) ? 3 : 0;
}
