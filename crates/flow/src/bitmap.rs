//! The bitmap of a fuzzer: hash functions, edge filters and counters.
//!
//! Only edges that a packet decided are counted: conditional branches both ways, indirect jumps and calls, returns,
//! far transfers. Direct jumps and calls follow from these. PT reports branches, not blocks, so AFL's hash takes the
//! address of the branch in place of the start of the first block.

use crate::sink::RunEnd;

/// Hash of an edge to its slot in a bitmap; the size of a bitmap is a power of two. Several edges may share a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum BitmapHash {
    /// That of AFL's QEMU mode, of the address of a branch and its target.
    Afl,
    /// That of libxdc.
    Libxdc,
}

impl BitmapHash {
    pub const ALL: [BitmapHash; 2] = [BitmapHash::Afl, BitmapHash::Libxdc];

    pub const fn name(self) -> &'static str {
        match self {
            BitmapHash::Afl => "afl",
            BitmapHash::Libxdc => "libxdc",
        }
    }

    /// Returns the slot of an edge. `mask`: the size of the bitmap, minus 1.
    #[inline]
    pub fn slot(self, from: u64, to: u64, mask: u64) -> u64 {
        match self {
            BitmapHash::Afl => {
                let block = |ip: u64| (ip >> 4 ^ ip << 8) & mask;
                block(to) ^ block(from) >> 1
            }
            BitmapHash::Libxdc => {
                let mixed = |ip: u64| (ip ^ ip >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
                (mixed(to) ^ mixed(from) >> 1) & 0xffff_ffff & mask
            }
        }
    }
}

/// The edges that are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum EdgeFilter {
    /// Edges that a packet decided: all but direct jumps and calls.
    Decided,
    /// Conditional branches, taken or not, as libxdc counts.
    Conditional,
}

impl EdgeFilter {
    pub const ALL: [EdgeFilter; 2] = [EdgeFilter::Decided, EdgeFilter::Conditional];

    pub const fn name(self) -> &'static str {
        match self {
            EdgeFilter::Decided => "decided",
            EdgeFilter::Conditional => "conditional",
        }
    }

    #[inline]
    pub fn accepts(self, kind: RunEnd) -> bool {
        match self {
            EdgeFilter::Decided => !matches!(kind, RunEnd::Jump | RunEnd::Call),
            EdgeFilter::Conditional => matches!(kind, RunEnd::Conditional | RunEnd::Cut),
        }
    }
}

/// Returns `counter + count`, at most 255: a counter that wraps to 0 would look as if the edge had not run.
#[inline]
pub fn add_saturating(counter: u8, count: u64) -> u8 {
    let count = u8::try_from(count).unwrap_or(u8::MAX);
    u8::saturating_add(counter, count)
}

/// Returns AFL's class of a count, one bit: 1, 2, 3, 4 to 7, 8 to 15, 16 to 31, 32 to 127, 128 and more.
#[inline]
pub fn count_class(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 4,
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        128..=255 => 128,
    }
}
