//! Edges as a map of counters, as fuzzers have it.

use crate::sink::End;

/// Where the counter of an edge is in a map of a power of two of bytes. Several edges may share one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Index {
    /// That of AFL's QEMU mode, which has it of the starts of two blocks: here of a branch's own address and its target.
    Afl,
    /// That of libxdc.
    Libxdc,
}

impl Index {
    pub const ALL: [Index; 2] = [Index::Afl, Index::Libxdc];

    pub const fn name(self) -> &'static str {
        match self {
            Index::Afl => "afl",
            Index::Libxdc => "libxdc",
        }
    }

    /// `mask`: the size of the map, less one.
    #[inline]
    pub fn of(self, from: u64, to: u64, mask: u64) -> u64 {
        match self {
            Index::Afl => {
                let place = |ip: u64| (ip >> 4 ^ ip << 8) & mask;
                place(to) ^ place(from) >> 1
            }
            Index::Libxdc => {
                let mixed = |ip: u64| (ip ^ ip >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
                (mixed(to) ^ mixed(from) >> 1) & 0xffff_ffff & mask
            }
        }
    }
}

/// Which edges are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Which {
    /// Those that a packet decided: all but direct jumps and calls, which follow from the others.
    Decided,
    /// Conditional branches alone, taken or not: libxdc's.
    Conditional,
}

impl Which {
    pub const ALL: [Which; 2] = [Which::Decided, Which::Conditional];

    pub const fn name(self) -> &'static str {
        match self {
            Which::Decided => "decided",
            Which::Conditional => "conditional",
        }
    }

    #[inline]
    pub fn has(self, kind: End) -> bool {
        match self {
            Which::Decided => !matches!(kind, End::Jump | End::Call),
            Which::Conditional => matches!(kind, End::Conditional | End::Cut),
        }
    }
}

/// A counter takes so many more; it stays at 255, so that no edge ever looks as if it had not run.
#[inline]
pub fn added(counter: u8, count: u64) -> u8 {
    let count = u8::try_from(count).unwrap_or(u8::MAX);
    counter.saturating_add(count)
}

/// AFL's class of a count, one bit: 1, 2, 3, 4 to 7, 8 to 15, 16 to 31, 32 to 127, 128 and more.
#[inline]
pub fn class(count: u8) -> u8 {
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
