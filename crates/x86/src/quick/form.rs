//! What follows an opcode, and what the instruction is, in 32 bits.

use crate::class::Class;

/// Bytes that are looked at: as many as the longest instruction has, and one more.
pub(super) const LOOKED_AT: usize = 16;

/// The size of operands that prefixes choose.
#[derive(Clone, Copy)]
pub(super) enum Size {
    Double = 0,
    Word = 1,
    Quad = 2,
}

/// Opcodes that do not say all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Odd {
    /// F6, F7: TEST has an immediate, the others have none.
    Group3,
    /// FF: several classes.
    Group5,
    /// MOV with an address: as long as addresses are.
    Offset,
    /// 0F 01: XGETBV, XTEST and RDTSCP, by the whole of ModRM.
    Group7,
}

/// An immediate; 0 stands for none.
pub(super) enum Immediate {
    Byte = 1,
    Word,
    /// ENTER.
    WordAndByte,
    Double,
    /// 4, or 2.
    Operand,
    /// 4, 2 or 8: MOV to a register.
    Whole,
}

/// Bytes, by `Immediate` and `Size`.
const IMMEDIATES: [[u8; 3]; 8] = [
    [0, 0, 0],
    [1, 1, 1],
    [2, 2, 2],
    [3, 3, 3],
    [4, 4, 4],
    [4, 2, 4],
    [4, 2, 8],
    [0, 0, 0],
];

/// Bits 0 to 15: the values of ModRM that are allowed, 0 to 7 for operands in memory by ModRM.reg, 8 to 15 for registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Form(u32);

const IN_MEMORY: u32 = 0x00ff;
const IN_REGISTER: u32 = 0xff00;
const MODRM: u32 = 1 << 16;
const IMMEDIATE: u32 = 17;
const CLASS: u32 = 20;
const ODD: u32 = 24;
const STRING: u32 = 1 << 27;
/// VEX.vvvv must be 1111.
const UNUSED_VVVV: u32 = 1 << 28;
const W0: u32 = 1 << 29;
const W1: u32 = 1 << 30;
const KNOWN: u32 = 1 << 31;

impl Form {
    pub const UNKNOWN: Form = Form(0);
    /// Nothing follows.
    pub const BARE: Form = Form(KNOWN | W0 | W1);
    /// ModRM, any.
    pub const ANY: Form = Form(Form::BARE.0 | MODRM | IN_MEMORY | IN_REGISTER);
    /// ModRM of an operand in memory.
    pub const MEMORY: Form = Form(Form::BARE.0 | MODRM | IN_MEMORY);
    /// ModRM of registers alone.
    pub const REGISTER: Form = Form(Form::BARE.0 | MODRM | IN_REGISTER);

    pub const fn with(self, immediate: Immediate) -> Form {
        Form(self.0 | (immediate as u32) << IMMEDIATE)
    }

    pub const fn of(self, class: Class) -> Form {
        Form(self.0 | (class as u32) << CLASS)
    }

    pub const fn but(self, odd: Odd) -> Form {
        Form(self.0 | (odd as u32 + 1) << ODD)
    }

    /// A string instruction, which a prefix repeats.
    pub const fn string(self) -> Form {
        Form(self.0 | STRING)
    }

    /// Only these values of ModRM.reg, a bit each.
    pub const fn only(self, regs: u8) -> Form {
        let regs = regs as u32;
        Form(self.0 & (!0xffff | regs | regs << 8))
    }

    /// In memory as it was, in registers only these values of ModRM.reg.
    pub const fn registers(self, regs: u8) -> Form {
        Form(self.0 & !IN_REGISTER | (regs as u32) << 8)
    }

    /// VEX.vvvv is not used.
    pub const fn two(self) -> Form {
        Form(self.0 | UNUSED_VVVV)
    }

    pub const fn w0(self) -> Form {
        Form(self.0 & !W1)
    }

    pub const fn w1(self) -> Form {
        Form(self.0 & !W0)
    }

    #[inline(always)]
    pub const fn is_known(self) -> bool {
        self.0 & KNOWN != 0
    }

    #[inline(always)]
    pub const fn has_modrm(self) -> bool {
        self.0 & MODRM != 0
    }

    #[inline(always)]
    pub const fn allows(self, modrm: u8) -> bool {
        let value = modrm >> 3 & 7 | ((modrm >= 0xc0) as u8) << 3;
        self.0 >> value & 1 != 0
    }

    /// The values of ModRM that are allowed, as in the value itself.
    pub const fn modrms(self) -> u16 {
        self.0 as u16
    }

    /// `vvvv` and `w` of a VEX prefix.
    #[inline(always)]
    pub const fn allows_vex(self, vvvv: u8, w: bool) -> bool {
        self.0 & (if w { W1 } else { W0 }) != 0 && (self.0 & UNUSED_VVVV == 0 || vvvv == 0xf)
    }

    #[inline(always)]
    pub const fn immediate(self, size: Size) -> usize {
        IMMEDIATES[(self.0 >> IMMEDIATE & 7) as usize][size as usize] as usize
    }

    #[inline(always)]
    pub const fn class(self) -> Class {
        match self.0 >> CLASS & 0xf {
            1 => Class::Conditional,
            2 => Class::Jump,
            3 => Class::Call,
            6 => Class::Return,
            8 => Class::Syscall,
            9 => Class::SoftwareInterrupt,
            _ => Class::Other,
        }
    }

    /// Of a direct branch: whether its displacement has 4 bytes, else it has 1.
    #[inline(always)]
    pub const fn displacement(self) -> Option<bool> {
        match self.class() {
            Class::Conditional | Class::Jump | Class::Call => {
                Some(self.0 >> IMMEDIATE & 7 == Immediate::Double as u32)
            }
            _ => None,
        }
    }

    #[inline(always)]
    pub const fn odd(self) -> Option<Odd> {
        match self.0 >> ODD & 7 {
            0 => None,
            1 => Some(Odd::Group3),
            2 => Some(Odd::Group5),
            3 => Some(Odd::Offset),
            _ => Some(Odd::Group7),
        }
    }

    #[inline(always)]
    pub const fn is_string(self) -> bool {
        self.0 & STRING != 0
    }
}

/// Bytes of ModRM, SIB and displacement with 32 or 64 address bits; a SIB without a base has 4 more if mod is 0.
pub(super) const AFTER_MODRM: [u8; 256] = after_modrm();

const fn after_modrm() -> [u8; 256] {
    let mut lengths = [1; 256];
    let mut modrm = 0;
    while modrm < 0xc0 {
        let (mode, memory) = (modrm >> 6, modrm & 7);
        if memory == 4 {
            lengths[modrm] += 1;
        }
        lengths[modrm] += match (mode, memory) {
            (1, _) => 1,
            (2, _) | (0, 5) => 4,
            _ => 0,
        };
        modrm += 1;
    }
    lengths
}
