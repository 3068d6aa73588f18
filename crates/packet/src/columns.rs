//! Packets as columns: for callers that look at millions of them.
//!
//! The first byte of most packets determines their kind, their length, and the position of the payload. Those are read
//! by a table ([`FirstByteClass`]) without a branch that depends on the kind; [`PacketScanner`] reads the others, and
//! all in blocks.

use crate::error::PacketError;
use crate::packet::PacketKind;
use crate::scan::PacketScanner;
use crate::scan::PSB;
use crate::table::{self, field, FieldLayout, Kind};

/// Packets that are collected before they are appended: they stay in the nearest cache.
const STAGE: usize = 512;

/// Bytes whose lengths are computed before packets are made of them, so that each packet waits for one load only.
const CHUNK: usize = 256;
/// A packet that begins in a chunk has up to seven more bytes, and a PSB that it swallows continues in the next one.
const BEYOND: usize = 8;

/// Packets as columns of one length.
///
/// | packet | `payload` | `detail` |
/// |---|---|---|
/// | TNT, TNT.64 | the results below a stop bit, the oldest highest | 0 |
/// | TIP, TIP.PGE, TIP.PGD, FUP | IP payload, zero-extended | IPBytes |
/// | PIP | `CR3[51:5]` in place | NR |
/// | MODE.Exec, MODE.TSX | 0 | bits 2:0 of the second byte |
/// | CBR, TSC, MTC, CYC, VMCS, MNT | their field | 0 |
/// | TMA | CTC, fast counter in bits 24:16 | 0 |
/// | PTW | payload | IP in bit 0, PayloadBytes in bits 2:1 |
/// | MWAIT | hints, EXT in bits 33:32 | 0 |
/// | PWRE | state in bits 7:4, sub-state in 3:0 | HW |
/// | PWRX | last in bits 7:4, deepest in 3:0 | wake reason |
/// | BBP | type | SZ |
/// | BIP | payload | ID in bits 4:0, SZ in bit 5 |
/// | EXSTOP, BEP | 0 | IP |
/// | CFE | type, vector in bits 15:8 | IP |
/// | EVD | payload | type |
/// | TRIG | TRBV, ICNT << 8 | ICNTV, MULT << 1, IP << 2 |
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PacketColumns {
    /// [`Kind`](crate::table::Kind) as a number: its row in the packet table.
    pub kind: Vec<u8>,
    pub detail: Vec<u8>,
    /// Offset of the first byte.
    pub offset: Vec<u64>,
    pub payload: Vec<u64>,
}

impl PacketColumns {
    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.kind.len()
    }

    /// Whether there are no packets.
    pub fn is_empty(&self) -> bool {
        self.kind.is_empty()
    }

    /// Reserves memory for `packets` more.
    pub fn reserve_packets(&mut self, packets: usize) {
        self.kind.reserve(packets);
        self.detail.reserve(packets);
        self.offset.reserve(packets);
        self.payload.reserve(packets);
    }

    /// Keeps the first `packets`.
    pub fn truncate(&mut self, packets: usize) {
        self.kind.truncate(packets);
        self.detail.truncate(packets);
        self.offset.truncate(packets);
        self.payload.truncate(packets);
    }

    /// Appends packets of `scanner` that begin before offset `until`, until there are `limit` of them, its data ends or
    /// an error occurs. Bytes after a packet may show that it is none: up to 32 bytes after it count, if there are any.
    pub fn append_packets(
        &mut self,
        scanner: &mut PacketScanner<'_>,
        limit: usize,
        until: usize,
    ) -> Result<(), PacketError> {
        let mut stage = PacketStage::new();
        while self.len() < limit {
            let room = (limit - self.len()).min(STAGE);
            let (count, ended) = stage.fill_stage(scanner, room, until);
            self.kind.extend_from_slice(first_items(&stage.kind, count));
            self.detail
                .extend_from_slice(first_items(&stage.detail, count));
            self.offset
                .extend_from_slice(first_items(&stage.offset, count));
            self.payload
                .extend_from_slice(first_items(&stage.payload, count));
            match ended {
                None => {}
                Some(ScanEnd::Data) => break,
                Some(ScanEnd::Error(error)) => return Err(error),
            }
        }
        Ok(())
    }
}

fn first_items<T>(column: &[T], count: usize) -> &[T] {
    column.get(..count).unwrap_or_default()
}

enum ScanEnd {
    Data,
    Error(PacketError),
}

struct PacketStage {
    kind: [u8; STAGE],
    detail: [u8; STAGE],
    offset: [u64; STAGE],
    payload: [u64; STAGE],
}

impl PacketStage {
    fn new() -> PacketStage {
        PacketStage {
            kind: [0; STAGE],
            detail: [0; STAGE],
            offset: [0; STAGE],
            payload: [0; STAGE],
        }
    }

    /// Reads up to `room` packets that begin before `until`. Returns their number, and why there are no more.
    fn fill_stage(
        &mut self,
        scanner: &mut PacketScanner<'_>,
        room: usize,
        until: usize,
    ) -> (usize, Option<ScanEnd>) {
        let mut count = 0;
        while count < room {
            if scanner.block_item_size().is_none() {
                count += self.fill_by_chunk(scanner, count, room, until);
                count += self.fill_by_class(scanner, count, room, until);
                if count == room {
                    break;
                }
            }
            if PacketScanner::next_packet_offset(scanner) >= until {
                return (count, Some(ScanEnd::Data));
            }
            let packet = match scanner.next() {
                Some(Ok(packet)) => packet,
                Some(Err(error)) => return (count, Some(ScanEnd::Error(error))),
                None => return (count, Some(ScanEnd::Data)),
            };
            let (detail, payload) = detail_and_payload(&packet.kind);
            let at = count.min(STAGE - 1);
            self.kind[at] = packet.kind.kind() as u8;
            self.detail[at] = detail;
            self.offset[at] = packet.offset as u64;
            self.payload[at] = payload;
            count += 1;
        }
        (count, None)
    }

    /// As `fill_by_class`, for whole chunks without bytes that may be part of a PSB.
    fn fill_by_chunk(
        &mut self,
        scanner: &mut PacketScanner<'_>,
        from: usize,
        room: usize,
        until: usize,
    ) -> usize {
        let (mut rest, end) = unread_bytes_before(scanner, until);
        let mut count = 0;
        while room - from - count >= CHUNK {
            let Some(chunk) = rest.first_chunk() else {
                break;
            };
            if may_have_psb(chunk) {
                break;
            }
            let offset = (end - rest.len()) as u64;
            let (packets, bytes) = self.fill_one_chunk(chunk, from + count, offset);
            rest = rest.get(bytes..).unwrap_or_default();
            count += packets;
            if bytes < CHUNK {
                break;
            }
        }
        scanner.seek_to(end - rest.len());
        count
    }

    /// Returns the number of packets and of their bytes; fewer than `CHUNK` if a packet needs more than its first byte.
    #[inline]
    fn fill_one_chunk(
        &mut self,
        chunk: &[u8; CHUNK + BEYOND],
        from: usize,
        base: u64,
    ) -> (usize, usize) {
        let mut lengths = [0; CHUNK];
        for (length, &byte) in lengths.iter_mut().zip(chunk) {
            *length = length_by_first_byte(byte);
        }
        let rows = self.kind[from..]
            .iter_mut()
            .zip(&mut self.detail[from..])
            .zip(&mut self.offset[from..])
            .zip(&mut self.payload[from..]);
        let (mut count, mut at) = (0, 0);
        for (((kind, detail), offset), payload) in rows {
            let (Some(&length @ 1..), Some(bytes)) = (
                lengths.get(at),
                chunk.get(at..).and_then(<[u8]>::first_chunk::<8>),
            ) else {
                break;
            };
            let class = &CLASSES[usize::from(bytes[0])];
            *kind = class.kind;
            *detail = class.detail;
            *offset = base + at as u64;
            *payload = u64::from_le_bytes(*bytes) >> class.shift & class.mask;
            at += usize::from(length);
            count += 1;
        }
        (count, at)
    }

    /// Reads packets that their first byte determines, into rows from `from` on. Returns their number.
    fn fill_by_class(
        &mut self,
        scanner: &mut PacketScanner<'_>,
        from: usize,
        room: usize,
        until: usize,
    ) -> usize {
        let (mut rest, end) = unread_bytes_before(scanner, until);
        let rows = self.kind[from..room]
            .iter_mut()
            .zip(&mut self.detail[from..room])
            .zip(&mut self.offset[from..room])
            .zip(&mut self.payload[from..room]);
        let mut count = 0;
        for (((kind, detail), offset), payload) in rows {
            let Some(bytes) = rest.first_chunk::<8>() else {
                break;
            };
            let class = &CLASSES[usize::from(bytes[0])];
            if class.length == 0 {
                break;
            }
            *kind = class.kind;
            *detail = class.detail;
            *offset = (end - rest.len()) as u64;
            *payload = u64::from_le_bytes(*bytes) >> class.shift & class.mask;
            let Some(after) = rest.get(usize::from(class.length)..) else {
                break;
            };
            if class.length > 1 && may_continue_as_psb(after) {
                break;
            }
            rest = after;
            count += 1;
        }
        scanner.seek_to(end - rest.len());
        count
    }
}

/// Returns the bytes before offset `until` that `scanner` has not read, and the offset of their end.
fn unread_bytes_before<'a>(scanner: &PacketScanner<'a>, until: usize) -> (&'a [u8], usize) {
    let (rest, begin) = (
        scanner.remaining_bytes(),
        PacketScanner::next_packet_offset(scanner),
    );
    let rest = rest.get(..until.saturating_sub(begin)).unwrap_or(rest);
    (rest, begin + rest.len())
}

/// Returns `detail` and `payload` of a packet, as in the table above.
fn detail_and_payload(kind: &PacketKind) -> (u8, u64) {
    match *kind {
        PacketKind::Pad
        | PacketKind::TraceStop
        | PacketKind::Ovf
        | PacketKind::Psb
        | PacketKind::PsbEnd => (0, 0),
        PacketKind::Tnt(tnt) | PacketKind::Tnt64(tnt) => (0, 1 << tnt.count | tnt.bits),
        PacketKind::Tip(ip)
        | PacketKind::TipPge(ip)
        | PacketKind::TipPgd(ip)
        | PacketKind::Fup(ip) => (ip.ip_bytes, ip.payload),
        PacketKind::Pip { nr, cr3 } => (nr.into(), cr3),
        PacketKind::ModeExec { csl, csd, iflag } => {
            (u8::from(csl) | u8::from(csd) << 1 | u8::from(iflag) << 2, 0)
        }
        PacketKind::ModeTsx { in_tx, tx_abort } => (u8::from(in_tx) | u8::from(tx_abort) << 1, 0),
        PacketKind::Cbr { ratio } => (0, ratio.into()),
        PacketKind::Tsc { tsc } => (0, tsc),
        PacketKind::Mtc { ctc } => (0, ctc.into()),
        PacketKind::Tma { ctc, fast_counter } => {
            (0, u64::from(ctc) | u64::from(fast_counter) << 16)
        }
        PacketKind::Cyc { cycles } => (0, cycles),
        PacketKind::Vmcs { pointer } => (0, pointer),
        PacketKind::Mnt { payload } => (0, payload),
        PacketKind::Ptw {
            ip,
            payload_bytes,
            payload,
        } => (u8::from(ip) | payload_bytes << 1, payload),
        PacketKind::ExStop { ip } | PacketKind::Bep { ip } => (ip.into(), 0),
        PacketKind::Mwait { hints, ext } => (0, u64::from(hints) | u64::from(ext) << 32),
        PacketKind::Pwre {
            hw,
            state,
            sub_state,
        } => (hw.into(), u64::from(state) << 4 | u64::from(sub_state)),
        PacketKind::Pwrx {
            last,
            deepest,
            wake,
        } => (wake, u64::from(last) << 4 | u64::from(deepest)),
        PacketKind::Bbp { sz, kind } => (sz.into(), kind.into()),
        PacketKind::Bip { id, sz, payload } => (id | u8::from(sz) << 5, payload),
        PacketKind::Cfe { ip, kind, vector } => {
            (ip.into(), u64::from(kind) | u64::from(vector) << 8)
        }
        PacketKind::Evd { kind, payload } => (kind, payload),
        PacketKind::Trig {
            ip,
            mult,
            trbv,
            icnt,
        } => (
            u8::from(icnt.is_some()) | u8::from(mult) << 1 | u8::from(ip) << 2,
            u64::from(trbv) | u64::from(icnt.unwrap_or(0)) << 8,
        ),
    }
}

/// The properties that the first byte of a packet determines; `length` 0: more bytes are needed.
#[derive(Clone, Copy)]
struct FirstByteClass {
    pub kind: u8,
    pub detail: u8,
    pub length: u8,
    pub shift: u8,
    pub mask: u64,
}

const NO_CLASS: FirstByteClass = FirstByteClass {
    kind: 0,
    detail: 0,
    length: 0,
    shift: 0,
    mask: 0,
};

/// By first byte, outside a block. No packet is longer than the eight bytes that are read.
static CLASSES: [FirstByteClass; 256] = class_table_by_first_byte();

const fn class_table_by_first_byte() -> [FirstByteClass; 256] {
    let mut classes = [NO_CLASS; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = class_of_first_byte(byte as u8);
        byte += 1;
    }
    classes
}

const fn is_header_of_kind(first: u8, kind: Kind) -> bool {
    let row = kind.declaration();
    first & row.mask[0] == row.header[0]
}

const fn class_of_first_byte(first: u8) -> FirstByteClass {
    if is_header_of_kind(first, Kind::Pad) {
        return class_of_packet(Kind::Pad, 1, None);
    }
    if first == table::ESCAPE {
        return NO_CLASS;
    }
    if is_header_of_kind(first, Kind::Tnt) {
        return class_of_packet(Kind::Tnt, 1, Some(field::TNT_BITS));
    }
    if is_header_of_kind(first, Kind::Cyc) {
        // its Exp bit: another byte follows
        return match first & 4 {
            0 => class_of_packet(Kind::Cyc, 1, Some(field::CYC_CYCLES)),
            _ => NO_CLASS,
        };
    }
    if is_header_of_kind(first, Kind::Mtc) {
        return class_of_packet(Kind::Mtc, 2, Some(field::MTC_CTC));
    }
    if is_header_of_kind(first, Kind::Tsc) {
        return class_of_packet(Kind::Tsc, 8, Some(field::TSC_TSC));
    }
    let mut ip_packets = [Kind::Tip, Kind::TipPge, Kind::TipPgd, Kind::Fup].as_slice();
    while let [kind, others @ ..] = ip_packets {
        if is_header_of_kind(first, *kind) {
            return class_of_ip_packet(*kind, first);
        }
        ip_packets = others;
    }
    NO_CLASS
}

const fn class_of_ip_packet(kind: Kind, first: u8) -> FirstByteClass {
    let ip_bytes = first >> field::IP_BYTES.bit;
    match table::IP_PAYLOAD[ip_bytes as usize] {
        Some(0) => FirstByteClass {
            detail: ip_bytes,
            ..class_of_packet(kind, 1, None)
        },
        Some(size) if size < 8 => {
            let payload = FieldLayout {
                byte: 1,
                bit: 0,
                width: 8 * size as u32,
                shift: 0,
            };
            FirstByteClass {
                detail: ip_bytes,
                ..class_of_packet(kind, 1 + size, Some(payload))
            }
        }
        _ => NO_CLASS,
    }
}

const fn class_of_packet(kind: Kind, length: u8, payload: Option<FieldLayout>) -> FirstByteClass {
    let (shift, mask) = match payload {
        None => (0, 0),
        Some(field) => (
            8 * field.byte as u8 + field.bit as u8,
            u64::MAX >> (64 - field.width),
        ),
    };
    FirstByteClass {
        kind: kind as u8,
        detail: 0,
        length,
        shift,
        mask,
    }
}

/// Returns the length as in `CLASSES`, but by comparisons alone, so that many are computed at once.
#[inline(always)]
const fn length_by_first_byte(byte: u8) -> u8 {
    let low = byte & 0x1F;
    let ip = low == 0x0D || low == 0x11 || low == 0x01 || low == 0x1D;
    let one = byte & 1 == 0 && byte != table::ESCAPE || byte & 7 == 3;
    let two = byte == 0x59;
    let eight = byte == 0x19;
    let high = byte >> 5;
    let by_ip = if high < 4 {
        1 + 2 * high
    } else if high == 4 {
        7
    } else {
        0
    };
    one as u8 | (two as u8) << 1 | (eight as u8) << 3 | if ip { by_ip } else { 0 }
}

const _: () = {
    let mut byte = 0;
    while byte < 256 {
        assert!(length_by_first_byte(byte as u8) == CLASSES[byte].length);
        byte += 1;
    }
};

/// Whether a chunk has bytes that may be the beginning or the end of a PSB.
#[inline(always)]
fn may_have_psb<const N: usize>(chunk: &[u8; N]) -> bool {
    let mut found = 0;
    for (&first, &second) in chunk.iter().zip(&chunk[1..]) {
        let one = (first == PSB[0]) & (second == PSB[1]);
        let other = (first == PSB[1]) & (second == PSB[0]);
        found |= u8::from(one | other);
    }
    found != 0
}

/// Whether the bytes after a packet may continue a PSB that the packet has swallowed; also if there are too few.
#[inline(always)]
fn may_continue_as_psb(after: &[u8]) -> bool {
    match after.first_chunk::<2>() {
        Some(&[first, second]) => {
            [first, second] == [PSB[0], PSB[1]] || [first, second] == [PSB[1], PSB[0]]
        }
        None => true,
    }
}
