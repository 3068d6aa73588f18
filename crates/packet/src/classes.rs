//! Packets that are told whole by their first byte, and what could be a part of a PSB.

use crate::psb::PSB;
use crate::table::{self, field, Field, Kind};

/// What the first byte says; `length` 0: not enough.
#[derive(Clone, Copy)]
pub(crate) struct Class {
    pub kind: u8,
    pub detail: u8,
    pub length: u8,
    pub shift: u8,
    pub mask: u64,
}

const NO_CLASS: Class = Class {
    kind: 0,
    detail: 0,
    length: 0,
    shift: 0,
    mask: 0,
};

/// By first byte, outside a block. Nothing longer than the eight bytes that are looked at.
pub(crate) static CLASSES: [Class; 256] = classes();

const fn classes() -> [Class; 256] {
    let mut classes = [NO_CLASS; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = class_of(byte as u8);
        byte += 1;
    }
    classes
}

const fn is(first: u8, kind: Kind) -> bool {
    let row = kind.row();
    first & row.mask[0] == row.header[0]
}

const fn class_of(first: u8) -> Class {
    if is(first, Kind::Pad) {
        return class(Kind::Pad, 1, None);
    }
    if first == table::ESCAPE {
        return NO_CLASS;
    }
    if is(first, Kind::Tnt) {
        return class(Kind::Tnt, 1, Some(field::TNT_BITS));
    }
    if is(first, Kind::Cyc) {
        // its Exp bit: it goes on
        return match first & 4 {
            0 => class(Kind::Cyc, 1, Some(field::CYC_CYCLES)),
            _ => NO_CLASS,
        };
    }
    if is(first, Kind::Mtc) {
        return class(Kind::Mtc, 2, Some(field::MTC_CTC));
    }
    if is(first, Kind::Tsc) {
        return class(Kind::Tsc, 8, Some(field::TSC_TSC));
    }
    let mut ip_packets = [Kind::Tip, Kind::TipPge, Kind::TipPgd, Kind::Fup].as_slice();
    while let [kind, others @ ..] = ip_packets {
        if is(first, *kind) {
            return ip_class(*kind, first);
        }
        ip_packets = others;
    }
    NO_CLASS
}

const fn ip_class(kind: Kind, first: u8) -> Class {
    let ip_bytes = first >> field::IP_BYTES.bit;
    match table::IP_PAYLOAD[ip_bytes as usize] {
        Some(0) => Class {
            detail: ip_bytes,
            ..class(kind, 1, None)
        },
        Some(size) if size < 8 => {
            let payload = Field {
                byte: 1,
                bit: 0,
                width: 8 * size as u32,
                shift: 0,
            };
            Class {
                detail: ip_bytes,
                ..class(kind, 1 + size, Some(payload))
            }
        }
        _ => NO_CLASS,
    }
}

const fn class(kind: Kind, length: u8, payload: Option<Field>) -> Class {
    let (shift, mask) = match payload {
        None => (0, 0),
        Some(field) => (
            8 * field.byte as u8 + field.bit as u8,
            u64::MAX >> (64 - field.width),
        ),
    };
    Class {
        kind: kind as u8,
        detail: 0,
        length,
        shift,
        mask,
    }
}

/// Of a packet with this first byte, as `CLASSES` has it, but by comparisons alone, so that many are made at once.
#[inline(always)]
pub(crate) const fn length_of(byte: u8) -> u8 {
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
        assert!(length_of(byte as u8) == CLASSES[byte].length);
        byte += 1;
    }
};

/// Whether anything there could be the beginning of a PSB, or its end.
#[inline(always)]
pub(crate) fn like_psb<const N: usize>(chunk: &[u8; N]) -> bool {
    let mut found = 0;
    for (&first, &second) in chunk.iter().zip(&chunk[1..]) {
        let one = (first == PSB[0]) & (second == PSB[1]);
        let other = (first == PSB[1]) & (second == PSB[0]);
        found |= u8::from(one | other);
    }
    found != 0
}

/// Whether a packet may have swallowed the beginning of a PSB, which goes on so; if too little is there, too.
#[inline(always)]
pub(crate) fn before_psb(after: &[u8]) -> bool {
    match after.first_chunk::<2>() {
        Some(&[first, second]) => {
            [first, second] == [PSB[0], PSB[1]] || [first, second] == [PSB[1], PSB[0]]
        }
        None => true,
    }
}
