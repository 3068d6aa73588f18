// Compares what crates/packet/examples/grammar.rs has read in streams with what libipt reads.
//
// Reads that program's output from standard input. Prints "compared STREAMS PACKETS REFUSED", the numbers of streams,
// of packets that agree in all fields, and of places where both see no packet; and of each kind of difference a line
// "OURS|THEIRS|COUNT|STREAM|OFFSET|BYTES": packets or errors, and the first of the kind with the bytes from there on.
#include <intel-pt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct record {
    uint32_t offset;
    uint16_t kind, length;
    uint64_t a, b;
};

enum { TRUNCATED = 0x100, ERRORS = 7, MODE_EXEC = 8, MODE_TSX = 9, PSB = 18 };

// By the number that rtit gives a packet, and of it by its error.
static const char *const OURS[] = {
    "PAD", "TNT", "TNT.64", "TIP", "TIP.PGE", "TIP.PGD", "FUP", "PIP", "MODE.Exec", "MODE.TSX", "TraceStop", "CBR",
    "TSC",
    "MTC", "TMA", "CYC", "VMCS", "OVF", "PSB", "PSBEND", "MNT", "PTW", "EXSTOP", "MWAIT", "PWRE", "PWRX", "BBP", "BIP",
    "BEP", "CFE", "EVD", "TRIG"};
static const char *const REFUSALS[ERRORS] = {"truncated", "unknown opcode", "reserved", "empty TNT", "broken PSB",
    "long CYC", "broken off"};
// The number that rtit gives a packet, by that of libipt; both kinds of MODE are one.
static const int KIND[] = {-1, -1, 0, 18, 19, 6, 3, 4, 5, 1, 2, 8, 7, 16, 11, 12, 14, 13, 15, 10, 17, 20, 22, 23, 24,
    25, 21};

struct difference {
    char ours[32], theirs[48];
    uint64_t count, stream;
    uint32_t offset, size;
    uint8_t bytes[24];
};
static struct difference differences[256];
static size_t kinds;

static const char *name_of(uint32_t kind) {
    if (kind >= TRUNCATED) return kind - TRUNCATED < ERRORS ? REFUSALS[kind - TRUNCATED] : "?";
    return kind < sizeof OURS / sizeof *OURS ? OURS[kind] : "?";
}

static void differ(const char *ours, const char *theirs, uint64_t stream, uint32_t offset, const uint8_t *at,
    uint32_t left) {
    struct difference *each = differences;
    while (each < differences + kinds && (strcmp(each->ours, ours) || strcmp(each->theirs, theirs))) each++;
    if (each == differences + kinds) {
        if (kinds == sizeof differences / sizeof *differences) return;
        kinds++;
        snprintf(each->ours, sizeof each->ours, "%s", ours);
        snprintf(each->theirs, sizeof each->theirs, "%s", theirs);
        each->stream = stream;
        each->offset = offset;
        each->size = left < sizeof each->bytes ? left : sizeof each->bytes;
        memcpy(each->bytes, at, each->size);
    }
    each->count++;
}

// The two words of a packet, as `record` of the other program has them.
static void words(const struct pt_packet *packet, uint64_t *a, uint64_t *b) {
    *a = *b = 0;
    switch (packet->type) {
        case ppt_fup: case ppt_tip: case ppt_tip_pge: case ppt_tip_pgd:
            *a = packet->payload.ip.ip;
            *b = packet->payload.ip.ipc;
            if (packet->payload.ip.ipc == pt_ipc_sext_48) *a &= (UINT64_C(1) << 48) - 1;
            break;
        case ppt_tnt_8: case ppt_tnt_64: *a = packet->payload.tnt.payload; *b = packet->payload.tnt.bit_size; break;
        case ppt_mode:
            if (packet->payload.mode.leaf == pt_mol_exec) {
                *a = packet->payload.mode.bits.exec.csl;
                *b = packet->payload.mode.bits.exec.csd;
            } else {
                *a = packet->payload.mode.bits.tsx.intx;
                *b = packet->payload.mode.bits.tsx.abrt;
            }
            break;
        case ppt_pip: *a = packet->payload.pip.cr3; *b = packet->payload.pip.nr; break;
        case ppt_vmcs: *a = packet->payload.vmcs.base; break;
        case ppt_cbr: *a = packet->payload.cbr.ratio; break;
        case ppt_tsc: *a = packet->payload.tsc.tsc; break;
        case ppt_tma: *a = packet->payload.tma.ctc; *b = packet->payload.tma.fc; break;
        case ppt_mtc: *a = packet->payload.mtc.ctc; break;
        case ppt_cyc: *a = packet->payload.cyc.value; break;
        case ppt_mnt: *a = packet->payload.mnt.payload; break;
        case ppt_exstop: *a = packet->payload.exstop.ip; break;
        // the hints of MWAIT are 8 bits and 2, and what is around them is reserved
        case ppt_mwait: *a = packet->payload.mwait.hints & 0xff; *b = packet->payload.mwait.ext & 3; break;
        case ppt_pwre:
            *a = (uint64_t)packet->payload.pwre.state << 8 | packet->payload.pwre.sub_state;
            *b = packet->payload.pwre.hw;
            break;
        case ppt_pwrx:
            *a = (uint64_t)packet->payload.pwrx.last << 8 | packet->payload.pwrx.deepest;
            *b = packet->payload.pwrx.interrupt | packet->payload.pwrx.store << 2
                | packet->payload.pwrx.autonomous << 3;
            break;
        case ppt_ptw:
            *a = packet->payload.ptw.payload;
            *b = (uint64_t)packet->payload.ptw.plc << 1 | packet->payload.ptw.ip;
            break;
        default: break;
    }
}

// What libipt's packet says that ours does not, NULL if they agree.
static const char *other(const struct record *ours, const struct pt_packet *packet) {
    int kind = packet->type < (int)(sizeof KIND / sizeof *KIND) ? KIND[packet->type] : -1;
    if (packet->type == ppt_mode && packet->payload.mode.leaf == pt_mol_tsx) kind = MODE_TSX;
    uint64_t a, b;
    words(packet, &a, &b);
    // libipt has no timer deadline
    uint64_t mask = packet->type == ppt_pwrx ? ~UINT64_C(2) : ~UINT64_C(0);
    if (kind < 0 || kind != ours->kind) return kind < 0 ? "?" : OURS[kind];
    if (packet->size != ours->length) return "another length";
    if (a != ours->a) return "another value";
    return b == (ours->b & mask) ? NULL : "another second value";
}

static uint64_t packets, refused;

static void compare(const uint8_t *bytes, uint32_t size, const struct record *records, uint32_t count,
    uint64_t stream) {
    struct pt_config config;
    pt_config_init(&config);
    config.begin = (uint8_t *)bytes;
    config.end = config.begin + size;
    struct pt_packet_decoder *decoder = pt_pkt_alloc_decoder(&config);
    if (!decoder) exit(3);
    uint32_t at = 0;
    int status = pt_pkt_sync_forward(decoder);
    for (;;) {
        uint64_t offset = 0;
        if (status < 0) {  // no PSB any more
            while (at < count && records[at].kind != PSB) at++;
            if (at < count) differ("PSB", "end", stream, records[at].offset, bytes + records[at].offset,
                size - records[at].offset);
            break;
        }
        pt_pkt_get_offset(decoder, &offset);
        // a difference may have left one of the two behind
        while (at < count && records[at].offset < offset) at++;
        if (at == count || records[at].kind != PSB || records[at].offset != offset) {
            if (at == count) differ("end", "PSB", stream, offset, bytes + offset, size - offset);
            while (at < count && records[at].kind != PSB) at++;
            if (at == count) break;
            differ("later PSB", "PSB", stream, offset, bytes + offset, size - offset);
            status = pt_pkt_sync_set(decoder, records[at].offset);
            continue;
        }
        for (;;) {
            struct pt_packet packet;
            pt_pkt_get_offset(decoder, &offset);
            status = pt_pkt_next(decoder, &packet, sizeof packet);
            const struct record *ours = at < count ? &records[at] : NULL;
            const char *mine = ours && ours->offset == offset ? name_of(ours->kind) : "end";
            const uint8_t *here = bytes + offset;
            if (status < 0) {
                int truncated = ours && ours->kind == TRUNCATED;
                if (status == -pte_eos && (!ours || truncated)) goto done;
                char theirs[48];
                snprintf(theirs, sizeof theirs, "error %s", pt_errstr(pt_errcode(status)));
                if (ours && ours->kind > TRUNCATED && ours->offset == offset && status != -pte_eos) {
                    refused++;
                    at++;
                } else differ(mine, theirs, stream, offset, here, size - offset);
                break;
            }
            const char *theirs = ours && ours->offset == offset && ours->kind < TRUNCATED
                ? other(ours, &packet) : "a packet";
            if (theirs) differ(mine, theirs, stream, offset, here, size - offset);
            else packets++;
            if (ours) at++;
            if (theirs && strncmp(theirs, "another", 7)) break;
            if (theirs && !strcmp(theirs, "another length")) break;
        }
        status = pt_pkt_sync_forward(decoder);
    }
done:
    pt_pkt_free_decoder(decoder);
}

static void *room(void *old, size_t size) {
    void *new = realloc(old, size ? size : 1);
    if (!new) exit(3);
    return new;
}

int main(void) {
    uint32_t head[2];
    uint64_t streams = 0;
    uint8_t *bytes = NULL;
    struct record *records = NULL;
    for (; fread(head, sizeof head, 1, stdin) == 1; streams++) {
        bytes = room(bytes, head[0]);
        records = room(records, head[1] * sizeof *records);
        if (fread(bytes, 1, head[0], stdin) != head[0] ||
            fread(records, sizeof *records, head[1], stdin) != head[1]) return 3;
        compare(bytes, head[0], records, head[1], streams);
    }
    printf("compared %llu %llu %llu\n", (unsigned long long)streams, (unsigned long long)packets,
        (unsigned long long)refused);
    for (struct difference *each = differences; each < differences + kinds; each++) {
        printf("%s|%s|%llu|%llu|%u|", each->ours, each->theirs, (unsigned long long)each->count,
            (unsigned long long)each->stream,
               each->offset);
        for (uint32_t at = 0; at < each->size; at++) printf("%02x", each->bytes[at]);
        putchar('\n');
    }
    return fflush(stdout) ? 3 : 0;
}
