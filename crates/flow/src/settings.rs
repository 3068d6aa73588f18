//! Settings of a decoder: properties of a stream that its packets do not contain, limits of memory, and the errata of
//! the processor.
//!
//! Sources of the errata: libipt's list of models (`pt_cpu_errata`) and its comments on each (`struct pt_errata`). For
//! an unknown processor only those errata apply that the packets themselves show, or that lose instructions and invent
//! none: a loss is better than an invented path.

use rtit_x86::CodeMode;

use crate::time::TimeSettings;
use crate::totals::DEFAULT_MAX_COUNTERS;

/// IP filter ranges that a processor can have (ADDRn_CFG = 1, section 33.2.5.2).
pub const MAX_RANGES: usize = 4;

/// The address ranges outside of which nothing was traced; none: there was no filter, or it is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FilterRanges {
    /// First and last address of each.
    ranges: [(u64, u64); MAX_RANGES],
    count: usize,
}

impl FilterRanges {
    /// `None` if there are more than `MAX_RANGES`.
    pub fn new(ranges: &[(u64, u64)]) -> Option<FilterRanges> {
        let mut found = FilterRanges::default();
        found
            .ranges
            .get_mut(..ranges.len())?
            .copy_from_slice(ranges);
        found.count = ranges.len();
        Some(found)
    }

    /// Whether code at `ip` is certainly not traced.
    pub(crate) fn excludes_ip(&self, ip: u64) -> bool {
        let ranges = self.ranges.get(..self.count).unwrap_or(&[]);
        !ranges.is_empty() && ranges.iter().all(|&(first, last)| ip < first || ip > last)
    }
}

/// Settings of a decoder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    pub time: TimeSettings,
    /// The stream was recorded with DisTNT: no conditional branch can be followed.
    pub no_tnt: bool,
    /// The stream was recorded with DisRETC: every RET has its own TIP.
    pub no_retcomp: bool,
    /// Limit of the code cache of the current address space, in bytes, and twice that of all others together. A larger
    /// cache is emptied before the next packet. Results do not depend on it.
    pub cache_limit: usize,
    /// The processor that wrote the stream, if it is known: it decides which errata apply.
    pub cpu: Option<CpuModel>,
    pub ranges: FilterRanges,
    /// The state at the beginning of the stream; `None`: unknown, and decoding starts at the first PSB.
    pub start: Option<InitialState>,
    pub transitions: TransitionLimits,
    /// Limit of the runs, and of the edges, that have their own counter in `Totals`.
    pub max_counters: usize,
    /// Rows have the number of the last timing sample as their time (`Decoder::take_timing_samples`).
    pub timing_samples: bool,
}

/// The state of tracing at the first byte of a stream, which is that of a packet outside a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitialState {
    /// The next instruction; `None`: tracing is off.
    pub ip: Option<u64>,
    pub mode: CodeMode,
    /// LastIP (section 33.4.2.2).
    pub last_ip: u64,
}

/// Limits of the transition tables (module `transitions`). Results do not depend on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransitionLimits {
    /// Limit of entries of a table; below 128: no tables.
    pub entries: usize,
    /// Limit of bytes that are decoded at once.
    pub stride: usize,
    /// Limit of the memory for transitions, in words of 32 bits; above it, all are dropped.
    pub words: usize,
    /// Bytes that are decoded before transitions are fused; 0: fuse at once, whatever recurs.
    pub fusion_warm_up: usize,
}

impl TransitionLimits {
    /// No transition tables: the interpreter decodes everything. The reference.
    pub const NONE: TransitionLimits = TransitionLimits {
        entries: 0,
        stride: 0,
        words: 0,
        fusion_warm_up: usize::MAX,
    };
}

impl Default for TransitionLimits {
    fn default() -> TransitionLimits {
        TransitionLimits {
            entries: 1 << 20,
            stride: usize::MAX,
            words: 1 << 21,
            fusion_warm_up: 1 << 15,
        }
    }
}

impl Settings {
    /// Returns the settings of one of `threads` decoders of a stream: together they use as much memory for code and
    /// transitions as one decoder, but each at least a quarter of that.
    pub(crate) fn for_one_of_threads(&self, threads: usize) -> Settings {
        let part = threads.clamp(1, 4);
        Settings {
            cache_limit: self.cache_limit / part,
            transitions: TransitionLimits {
                words: self.transitions.words / part,
                ..self.transitions
            },
            ..*self
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            time: TimeSettings::default(),
            no_tnt: false,
            no_retcomp: false,
            cache_limit: 1 << 26,
            cpu: None,
            ranges: FilterRanges::default(),
            start: None,
            transitions: TransitionLimits::default(),
            max_counters: DEFAULT_MAX_COUNTERS,
            timing_samples: false,
        }
    }
}

/// DisplayFamily, DisplayModel and stepping of an Intel processor (CPUID.01H:EAX).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct CpuModel {
    pub family: u16,
    pub model: u16,
    pub stepping: u8,
}

named_enum! {
    /// One erratum under the name of the first processor that listed it.
    Erratum {
        /// A transactional abort right after a branch: the branch's packet may have a wrong target.
        Bdm64 = 0, "BDM64";
        /// A PSB+ in front of a TIP.PGE may have a FUP.
        Bdm70 = 1, "BDM70";
        /// OVF may replace all bytes of a CYC but the first.
        Skd007 = 2, "SKD007";
        /// OVF may lack the FUP with the IP at which tracing continues.
        Skd010 = 3, "SKD010";
        /// A VM entry that turns tracing off may have a FUP before its TIP.PGD.
        Skd022 = 4, "SKD022";
        /// The TIP.PGD of a direct branch out of the filter ranges may lack its IP.
        Skl014 = 5, "SKL014";
        /// TMA may hold wrong values, and a stray byte follows it.
        Skz84 = 6, "SKZ84";
        /// A TIP.PGD may follow OVF.
        Apl11 = 7, "APL11";
        /// A FUP may follow OVF though tracing is outside the filter ranges.
        Apl12 = 8, "APL12";
    }
}

/// The errata that apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErratumSet {
    set: u16,
    known: bool,
}

const fn erratum_bits(errata: &[Erratum]) -> u16 {
    let mut set = 0;
    let mut index = 0;
    while index < errata.len() {
        set |= 1 << errata[index] as u8;
        index += 1;
    }
    set
}

/// The packets show these, or assuming them loses instructions and invents none.
const SAFE: u16 = erratum_bits(&[
    Erratum::Bdm70,
    Erratum::Skd007,
    Erratum::Skl014,
    Erratum::Skz84,
    Erratum::Apl11,
]);

const BROADWELL: u16 = erratum_bits(&[Erratum::Bdm64, Erratum::Bdm70]);
const SKYLAKE: u16 = erratum_bits(&[
    Erratum::Bdm70,
    Erratum::Skd007,
    Erratum::Skd010,
    Erratum::Skd022,
    Erratum::Skl014,
]);
const ICE_LAKE: u16 = erratum_bits(&[Erratum::Bdm70, Erratum::Skd022, Erratum::Skl014]);
const SERVER: u16 = ICE_LAKE | erratum_bits(&[Erratum::Skz84]);
const LATER_SERVER: u16 = erratum_bits(&[Erratum::Bdm70, Erratum::Skd022, Erratum::Skz84]);
const HYBRID: u16 = erratum_bits(&[Erratum::Bdm70, Erratum::Skd022, Erratum::Apl11]);
const GOLDMONT: u16 = erratum_bits(&[Erratum::Apl11, Erratum::Apl12]);
const ATOM: u16 = erratum_bits(&[Erratum::Apl11]);

impl ErratumSet {
    /// Returns the errata of a processor; `None`: it is unknown.
    pub fn for_cpu(cpu: Option<CpuModel>) -> ErratumSet {
        let set = cpu.and_then(|cpu| match (cpu.family, cpu.model) {
            (6, 0x3d | 0x47 | 0x4f | 0x56) => Some(BROADWELL),
            (6, 0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6) => Some(SKYLAKE),
            (6, 0x66 | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7 | 0xa8) => Some(ICE_LAKE),
            (6, 0x55 | 0x6a | 0x6c) => Some(SERVER),
            (6, 0x8f | 0xad | 0xae | 0xcf) | (0x13, 0x01) => Some(LATER_SERVER),
            (6, 0x97 | 0x9a | 0xaa | 0xac | 0xb5 | 0xb7) => Some(HYBRID),
            (6, 0xba | 0xbd | 0xbf | 0xc5 | 0xc6 | 0xcc | 0xd5) | (0x12, 0x01 | 0x03) => {
                Some(HYBRID)
            }
            (6, 0x5c | 0x5f) => Some(GOLDMONT),
            (6, 0x7a | 0x86 | 0x96 | 0x9c | 0xaf | 0xb6 | 0xdd) => Some(ATOM),
            _ => None,
        });
        ErratumSet {
            set: set.unwrap_or(SAFE),
            known: set.is_some(),
        }
    }

    /// Whether an erratum applies.
    #[inline]
    pub fn has_erratum(self, erratum: Erratum) -> bool {
        self.set & 1 << erratum as u8 != 0
    }

    /// Whether the processor is one whose errata are listed.
    pub fn is_processor_known(self) -> bool {
        self.known
    }
}
