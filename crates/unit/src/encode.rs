//! Packet bytes, from the places that the packet table gives to headers and fields.

use rtit_packet::table::{field, Field, Kind, IP_PAYLOAD, ROWS};

/// A packet of at most 8 bytes: its bytes as a little-endian word, and how many they are.
pub(crate) type Word = (u64, usize);

const fn header(kind: Kind) -> u64 {
    let bytes = ROWS[kind as usize].header;
    let (mut word, mut index) = (0, 0);
    while index < bytes.len() {
        word |= (bytes[index] as u64) << (8 * index);
        index += 1;
    }
    word
}

const fn size(kind: Kind) -> usize {
    ROWS[kind as usize].size as usize
}

const fn place(field: Field, value: u64) -> u64 {
    let low = (value >> field.shift) & (u64::MAX >> (64 - field.width));
    low << (8 * field.byte as u32 + field.bit)
}

const fn only(kind: Kind, field: Field, value: u64) -> Word {
    (header(kind) | place(field, value), size(kind))
}

pub(crate) const TIP: u8 = header(Kind::Tip) as u8;
pub(crate) const TIP_PGE: u8 = header(Kind::TipPge) as u8;
pub(crate) const TIP_PGD: u8 = header(Kind::TipPgd) as u8;
pub(crate) const FUP: u8 = header(Kind::Fup) as u8;

pub(crate) const PGD_SUPPRESSED: Word = (header(Kind::TipPgd), size(Kind::TipPgd));
pub(crate) const TRACE_STOP: Word = (header(Kind::TraceStop), size(Kind::TraceStop));
pub(crate) const OVF: Word = (header(Kind::Ovf), size(Kind::Ovf));
pub(crate) const PSBEND: Word = (header(Kind::PsbEnd), size(Kind::PsbEnd));
/// 64-bit code: CS.L & LMA set, CS.D clear.
pub(crate) const MODE_EXEC_64: Word = only(Kind::ModeExec, field::MODE_EXEC_CSL, 1);
/// Outside a transaction.
pub(crate) const MODE_TSX: Word = (header(Kind::ModeTsx), size(Kind::ModeTsx));

/// What an IP packet adds to its header byte for these IPBytes, and the bytes of its payload.
pub(crate) const fn ip_form(ip_bytes: u8) -> (u8, u8) {
    let bytes = match IP_PAYLOAD[ip_bytes as usize & 7] {
        Some(bytes) => bytes,
        None => 0,
    };
    (place(field::IP_BYTES, ip_bytes as u64) as u8, bytes)
}

/// Results with the stop bit above them, at most 6.
#[inline(always)]
pub(crate) fn short_tnt(tnt: u64) -> Word {
    const EMPTY: Word = only(Kind::Tnt, field::TNT_BITS, 0);
    (EMPTY.0 | place(field::TNT_BITS, tnt), EMPTY.1)
}

/// Results with the stop bit above them, at most 47.
#[inline(always)]
pub(crate) fn long_tnt(tnt: u64) -> Word {
    const EMPTY: Word = only(Kind::Tnt64, field::TNT_64_BITS, 0);
    (EMPTY.0 | place(field::TNT_64_BITS, tnt), EMPTY.1)
}

/// The low 56 bits of the TSC.
pub(crate) fn tsc(tsc: u64) -> Word {
    only(Kind::Tsc, field::TSC_TSC, tsc)
}

pub(crate) fn tma(ctc: u64, fast_counter: u64) -> Word {
    let (word, size) = only(Kind::Tma, field::TMA_CTC, ctc);
    (word | place(field::TMA_FAST_COUNTER, fast_counter), size)
}

pub(crate) fn cbr(ratio: u64) -> Word {
    only(Kind::Cbr, field::CBR_RATIO, ratio)
}

pub(crate) fn mtc(ctc: u64) -> Word {
    // A constant: what is left of the table to look up here is seen in a profile.
    const EMPTY: Word = only(Kind::Mtc, field::MTC_CTC, 0);
    (EMPTY.0 | place(field::MTC_CTC, ctc), EMPTY.1)
}

/// A CYC in its shortest form, fewer than 2^61 cycles: 5 bits in its first byte, 7 in each further one, each with a bit
/// that says whether another follows (Table 33-33).
pub(crate) fn cyc(cycles: u64) -> ([u8; 9], usize) {
    let mut bytes = [0; 9];
    let (word, _) = only(Kind::Cyc, field::CYC_CYCLES, cycles);
    bytes[0] = word as u8;
    let mut rest = cycles >> field::CYC_CYCLES.width;
    let mut count = 1;
    let mut more = 1 << (field::CYC_CYCLES.bit - 1);
    while rest != 0 && count < bytes.len() {
        bytes[count - 1] |= more;
        bytes[count] = (rest << 1) as u8;
        more = 1;
        rest >>= 7;
        count += 1;
    }
    (bytes, count)
}
