//! Errata of processors that concern decoding, by model.
//!
//! Sources: libipt's list of models (`pt_cpu_errata`) and its comments on each (`struct pt_errata`). For an unknown
//! processor only those errata apply that the packets themselves show, or that lose instructions and invent none: a
//! loss is better than an invented path.

/// DisplayFamily, DisplayModel and stepping of an Intel processor (CPUID.01H:EAX).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Cpu {
    pub family: u16,
    pub model: u16,
    pub stepping: u8,
}

/// One erratum under the name of the first processor that listed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Erratum {
    /// A transactional abort right after a branch: the branch's packet may have a wrong target.
    Bdm64 = 0,
    /// A PSB+ in front of a TIP.PGE may have a FUP.
    Bdm70 = 1,
    /// OVF may come in the place of all bytes of a CYC but the first.
    Skd007 = 2,
    /// OVF may lack the FUP that says where tracing goes on.
    Skd010 = 3,
    /// A VM entry that turns tracing off may have a FUP before its TIP.PGD.
    Skd022 = 4,
    /// The TIP.PGD of a direct branch out of the filter ranges may lack its IP.
    Skl014 = 5,
    /// TMA may hold wrong values, and a stray byte follows it.
    Skz84 = 6,
    /// A TIP.PGD may follow OVF.
    Apl11 = 7,
    /// A FUP may follow OVF though tracing is outside the filter ranges.
    Apl12 = 8,
}

impl Erratum {
    pub const ALL: [Erratum; 9] = [
        Erratum::Bdm64,
        Erratum::Bdm70,
        Erratum::Skd007,
        Erratum::Skd010,
        Erratum::Skd022,
        Erratum::Skl014,
        Erratum::Skz84,
        Erratum::Apl11,
        Erratum::Apl12,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Erratum::Bdm64 => "BDM64",
            Erratum::Bdm70 => "BDM70",
            Erratum::Skd007 => "SKD007",
            Erratum::Skd010 => "SKD010",
            Erratum::Skd022 => "SKD022",
            Erratum::Skl014 => "SKL014",
            Erratum::Skz84 => "SKZ84",
            Erratum::Apl11 => "APL11",
            Erratum::Apl12 => "APL12",
        }
    }
}

/// The errata that apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errata {
    set: u16,
    known: bool,
}

const fn set_of(errata: &[Erratum]) -> u16 {
    let mut set = 0;
    let mut index = 0;
    while index < errata.len() {
        set |= 1 << errata[index] as u8;
        index += 1;
    }
    set
}

/// That these are there shows in the packets alone, or taking them for there loses instructions and invents none.
const SAFE: u16 = set_of(&[
    Erratum::Bdm70,
    Erratum::Skd007,
    Erratum::Skl014,
    Erratum::Skz84,
    Erratum::Apl11,
]);

const BROADWELL: u16 = set_of(&[Erratum::Bdm64, Erratum::Bdm70]);
const SKYLAKE: u16 = set_of(&[
    Erratum::Bdm70,
    Erratum::Skd007,
    Erratum::Skd010,
    Erratum::Skd022,
    Erratum::Skl014,
]);
const ICE_LAKE: u16 = set_of(&[Erratum::Bdm70, Erratum::Skd022, Erratum::Skl014]);
const SERVER: u16 = ICE_LAKE | set_of(&[Erratum::Skz84]);
const LATER_SERVER: u16 = set_of(&[Erratum::Bdm70, Erratum::Skd022, Erratum::Skz84]);
const HYBRID: u16 = set_of(&[Erratum::Bdm70, Erratum::Skd022, Erratum::Apl11]);
const GOLDMONT: u16 = set_of(&[Erratum::Apl11, Erratum::Apl12]);
const ATOM: u16 = set_of(&[Erratum::Apl11]);

impl Errata {
    /// Of a processor; `None`: it is not known which it is.
    pub fn of(cpu: Option<Cpu>) -> Errata {
        let Some(cpu) = cpu else {
            return Errata {
                set: SAFE,
                known: false,
            };
        };
        let set = match (cpu.family, cpu.model) {
            (6, 0x3d | 0x47 | 0x4f | 0x56) => BROADWELL,
            (6, 0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6) => SKYLAKE,
            (6, 0x66 | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7 | 0xa8) => ICE_LAKE,
            (6, 0x55 | 0x6a | 0x6c) => SERVER,
            (6, 0x8f | 0xad | 0xae | 0xcf) | (0x13, 0x01) => LATER_SERVER,
            (6, 0x97 | 0x9a | 0xaa | 0xac | 0xb5 | 0xb7) => HYBRID,
            (6, 0xba | 0xbd | 0xbf | 0xc5 | 0xc6 | 0xcc | 0xd5) | (0x12, 0x01 | 0x03) => HYBRID,
            (6, 0x5c | 0x5f) => GOLDMONT,
            (6, 0x7a | 0x86 | 0x96 | 0x9c | 0xaf | 0xb6 | 0xdd) => ATOM,
            // not listed
            _ => {
                return Errata {
                    set: SAFE,
                    known: false,
                }
            }
        };
        Errata { set, known: true }
    }

    /// Whether an erratum applies.
    #[inline]
    pub fn has(self, erratum: Erratum) -> bool {
        self.set & 1 << erratum as u8 != 0
    }

    /// Whether the processor is one whose errata are listed.
    pub fn is_known(self) -> bool {
        self.known
    }
}
