//! The properties of an opcode in 32 bits: its operands, its class, and what follows it.

use crate::class::InstructionClass;

/// Bytes that the decoder reads: one more than the longest instruction has.
pub(super) const DECODE_WINDOW: usize = 16;

/// The operand size that prefixes select.
#[derive(Clone, Copy)]
pub(super) enum OperandSize {
    Double = 0,
    Word = 1,
    Quad = 2,
}

/// Opcodes with properties that depend on ModRM or the address size.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SpecialOpcode {
    /// F6, F7: TEST has an immediate, the others have none.
    Group3,
    /// FF: several classes.
    Group5,
    /// MOV with an absolute address, of the size of addresses.
    Offset,
    /// 0F 01: XGETBV, XTEST and RDTSCP, by the whole of ModRM.
    Group7,
}

/// The immediate operand; 0 stands for none.
pub(super) enum ImmediateKind {
    Byte = 1,
    Word,
    /// ENTER.
    WordAndByte,
    Double,
    /// 4 or 2 bytes.
    Operand,
    /// 4, 2 or 8 bytes: MOV to a register.
    Whole,
}

/// Bytes by `ImmediateKind` and `OperandSize`.
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

/// Bits 0 to 15: the permitted values of ModRM. 0 to 7 for memory operands by ModRM.reg, 8 to 15 for registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct OpcodeForm(u32);

const IN_MEMORY: u32 = 0x00ff;
const IN_REGISTER: u32 = 0xff00;
const MODRM: u32 = 1 << 16;
const IMMEDIATE: u32 = 17;
const CLASS: u32 = 20;
const SPECIAL: u32 = 24;
const STRING: u32 = 1 << 27;
/// VEX.vvvv must be 1111.
const UNUSED_VVVV: u32 = 1 << 28;
const W0: u32 = 1 << 29;
const W1: u32 = 1 << 30;
const KNOWN: u32 = 1 << 31;

impl OpcodeForm {
    pub const UNKNOWN: OpcodeForm = OpcodeForm(0);
    /// The opcode alone.
    pub const BARE: OpcodeForm = OpcodeForm(KNOWN | W0 | W1);
    /// With any ModRM.
    pub const ANY: OpcodeForm = OpcodeForm(OpcodeForm::BARE.0 | MODRM | IN_MEMORY | IN_REGISTER);
    /// With a ModRM for a memory operand.
    pub const MEMORY: OpcodeForm = OpcodeForm(OpcodeForm::BARE.0 | MODRM | IN_MEMORY);
    /// With a ModRM for registers.
    pub const REGISTER: OpcodeForm = OpcodeForm(OpcodeForm::BARE.0 | MODRM | IN_REGISTER);

    pub const fn with_immediate(self, immediate: ImmediateKind) -> OpcodeForm {
        OpcodeForm(self.0 | (immediate as u32) << IMMEDIATE)
    }

    pub const fn with_class(self, class: InstructionClass) -> OpcodeForm {
        OpcodeForm(self.0 | (class as u32) << CLASS)
    }

    pub const fn with_special_opcode(self, opcode: SpecialOpcode) -> OpcodeForm {
        OpcodeForm(self.0 | (opcode as u32 + 1) << SPECIAL)
    }

    /// A string instruction, which REP repeats.
    pub const fn with_string_flag(self) -> OpcodeForm {
        OpcodeForm(self.0 | STRING)
    }

    /// Permits only these values of ModRM.reg, one bit each.
    pub const fn only_modrm_reg_values(self, regs: u8) -> OpcodeForm {
        let regs = regs as u32;
        OpcodeForm(self.0 & (!0xffff | regs | regs << 8))
    }

    /// Permits memory operands as before, and registers only with these values of ModRM.reg.
    pub const fn only_modrm_register_values(self, regs: u8) -> OpcodeForm {
        OpcodeForm(self.0 & !IN_REGISTER | (regs as u32) << 8)
    }

    /// VEX.vvvv is unused.
    pub const fn without_vvvv(self) -> OpcodeForm {
        OpcodeForm(self.0 | UNUSED_VVVV)
    }

    pub const fn require_w_clear(self) -> OpcodeForm {
        OpcodeForm(self.0 & !W1)
    }

    pub const fn require_w_set(self) -> OpcodeForm {
        OpcodeForm(self.0 & !W0)
    }

    #[inline(always)]
    pub const fn is_opcode_known(self) -> bool {
        self.0 & KNOWN != 0
    }

    #[inline(always)]
    pub const fn has_modrm(self) -> bool {
        self.0 & MODRM != 0
    }

    #[inline(always)]
    pub const fn allows_modrm(self, modrm: u8) -> bool {
        let value = modrm >> 3 & 7 | ((modrm >= 0xc0) as u8) << 3;
        self.0 >> value & 1 != 0
    }

    /// Returns the permitted values of ModRM, as stored.
    pub const fn allowed_modrm_bits(self) -> u16 {
        self.0 as u16
    }

    /// Returns whether these values of a VEX prefix are permitted.
    #[inline(always)]
    pub const fn allows_vex(self, vvvv: u8, w: bool) -> bool {
        self.0 & (if w { W1 } else { W0 }) != 0 && (self.0 & UNUSED_VVVV == 0 || vvvv == 0xf)
    }

    #[inline(always)]
    pub const fn immediate_size(self, size: OperandSize) -> usize {
        IMMEDIATES[(self.0 >> IMMEDIATE & 7) as usize][size as usize] as usize
    }

    #[inline(always)]
    pub const fn instruction_class(self) -> InstructionClass {
        match self.0 >> CLASS & 0xf {
            1 => InstructionClass::Conditional,
            2 => InstructionClass::Jump,
            3 => InstructionClass::Call,
            6 => InstructionClass::Return,
            8 => InstructionClass::Syscall,
            9 => InstructionClass::SoftwareInterrupt,
            _ => InstructionClass::Other,
        }
    }

    /// For a direct branch, returns whether its displacement has 4 bytes (otherwise 1).
    #[inline(always)]
    pub const fn has_large_displacement(self) -> Option<bool> {
        match self.instruction_class() {
            InstructionClass::Conditional | InstructionClass::Jump | InstructionClass::Call => {
                Some(self.0 >> IMMEDIATE & 7 == ImmediateKind::Double as u32)
            }
            _ => None,
        }
    }

    #[inline(always)]
    pub const fn special_opcode(self) -> Option<SpecialOpcode> {
        match self.0 >> SPECIAL & 7 {
            0 => None,
            1 => Some(SpecialOpcode::Group3),
            2 => Some(SpecialOpcode::Group5),
            3 => Some(SpecialOpcode::Offset),
            _ => Some(SpecialOpcode::Group7),
        }
    }

    #[inline(always)]
    pub const fn is_string_instruction(self) -> bool {
        self.0 & STRING != 0
    }
}

/// Bytes of ModRM, SIB and displacement with 32 or 64 address bits. A SIB without a base has 4 more if mod is 0.
pub(super) const AFTER_MODRM: [u8; 256] = bytes_after_modrm_table();

const fn bytes_after_modrm_table() -> [u8; 256] {
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
