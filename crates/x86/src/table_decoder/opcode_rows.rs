//! Opcodes without VEX prefix; each row describes one opcode or several consecutive ones (SDM volume 2, appendix A).

use super::opcode_form::{ImmediateKind, OpcodeForm, SpecialOpcode};
use crate::class::InstructionClass;

/// The prefixes that may select the instruction: one bit for none, 66, F3, F2, LOCK.
pub(super) const N: u8 = 1;
pub(super) const P66: u8 = 2;
pub(super) const F3: u8 = 4;
pub(super) const F2: u8 = 8;
const LOCK: u8 = 16;
pub(super) const ALL: u8 = N | P66 | F3 | F2;
const NOT_66: u8 = ALL & !P66;

const ONE: u8 = 0;
const M0F: u8 = 1;
const M0F38: u8 = 2;
const M0F3A: u8 = 3;

/// The opcodes from `first` to `last` of a map.
pub(super) struct OpcodeRow {
    pub map: u8,
    pub prefixes: u8,
    pub first: u8,
    pub last: u8,
    pub form: OpcodeForm,
}

impl OpcodeRow {
    /// Stores the row in the forms of its map and a prefix.
    pub const fn fill_forms(&self, forms: &mut [OpcodeForm; 256]) {
        let mut opcode = self.first as usize;
        while opcode <= self.last as usize {
            assert!(
                !forms[opcode].is_opcode_known(),
                "two rows have the same opcode"
            );
            forms[opcode] = self.form;
            opcode += 1;
        }
    }
}

pub(super) const fn opcode_row(
    map: u8,
    prefixes: u8,
    first: u8,
    last: u8,
    form: OpcodeForm,
) -> OpcodeRow {
    OpcodeRow {
        map,
        prefixes,
        first,
        last,
        form,
    }
}

const ANY: OpcodeForm = OpcodeForm::ANY;
const MEMORY: OpcodeForm = OpcodeForm::MEMORY;
const REGISTER: OpcodeForm = OpcodeForm::REGISTER;
const BARE: OpcodeForm = OpcodeForm::BARE;
const ANY_BYTE: OpcodeForm = ANY.with_immediate(ImmediateKind::Byte);
const BYTE: OpcodeForm = BARE.with_immediate(ImmediateKind::Byte);
const OPERAND: OpcodeForm = BARE.with_immediate(ImmediateKind::Operand);
const NEAR: OpcodeForm = BARE.with_immediate(ImmediateKind::Double);
const ANY_OPERAND: OpcodeForm = ANY.with_immediate(ImmediateKind::Operand);
const RET: OpcodeForm = BARE.with_class(InstructionClass::Return);
const RET_WORD: OpcodeForm = RET.with_immediate(ImmediateKind::Word);
const JCC_BYTE: OpcodeForm = BYTE.with_class(InstructionClass::Conditional);
const JCC_NEAR: OpcodeForm = NEAR.with_class(InstructionClass::Conditional);
const INT: OpcodeForm = BARE.with_class(InstructionClass::SoftwareInterrupt);
const INT_BYTE: OpcodeForm = BYTE.with_class(InstructionClass::SoftwareInterrupt);
const ENTER: OpcodeForm = BARE.with_immediate(ImmediateKind::WordAndByte);
const GROUP_3_BYTE: OpcodeForm = ANY_BYTE.with_special_opcode(SpecialOpcode::Group3);
const GROUP_3_OPERAND: OpcodeForm = ANY_OPERAND.with_special_opcode(SpecialOpcode::Group3);
const GROUP_5: OpcodeForm = ANY
    .only_modrm_reg_values(0b0101_0111)
    .with_special_opcode(SpecialOpcode::Group5);
const REGISTER_BYTE: OpcodeForm = REGISTER.with_immediate(ImmediateKind::Byte);
const LOCKED_BYTE: OpcodeForm = MEMORY
    .only_modrm_reg_values(0x7f)
    .with_immediate(ImmediateKind::Byte);
const LOCKED_OPERAND: OpcodeForm = MEMORY
    .only_modrm_reg_values(0x7f)
    .with_immediate(ImmediateKind::Operand);
const LOCKED_BITS: OpcodeForm = MEMORY
    .only_modrm_reg_values(0b1110_0000)
    .with_immediate(ImmediateKind::Byte);

/// In 32-bit and 64-bit code.
const BOTH: &[OpcodeRow] = &[
    // ADD, OR, ADC, SBB, AND, SUB, XOR, CMP
    opcode_row(ONE, ALL, 0x00, 0x03, ANY),
    opcode_row(ONE, ALL, 0x04, 0x04, BYTE),
    opcode_row(ONE, ALL, 0x05, 0x05, OPERAND),
    opcode_row(ONE, ALL, 0x08, 0x0b, ANY),
    opcode_row(ONE, ALL, 0x0c, 0x0c, BYTE),
    opcode_row(ONE, ALL, 0x0d, 0x0d, OPERAND),
    opcode_row(ONE, ALL, 0x10, 0x13, ANY),
    opcode_row(ONE, ALL, 0x14, 0x14, BYTE),
    opcode_row(ONE, ALL, 0x15, 0x15, OPERAND),
    opcode_row(ONE, ALL, 0x18, 0x1b, ANY),
    opcode_row(ONE, ALL, 0x1c, 0x1c, BYTE),
    opcode_row(ONE, ALL, 0x1d, 0x1d, OPERAND),
    opcode_row(ONE, ALL, 0x20, 0x23, ANY),
    opcode_row(ONE, ALL, 0x24, 0x24, BYTE),
    opcode_row(ONE, ALL, 0x25, 0x25, OPERAND),
    opcode_row(ONE, ALL, 0x28, 0x2b, ANY),
    opcode_row(ONE, ALL, 0x2c, 0x2c, BYTE),
    opcode_row(ONE, ALL, 0x2d, 0x2d, OPERAND),
    opcode_row(ONE, ALL, 0x30, 0x33, ANY),
    opcode_row(ONE, ALL, 0x34, 0x34, BYTE),
    opcode_row(ONE, ALL, 0x35, 0x35, OPERAND),
    opcode_row(ONE, ALL, 0x38, 0x3b, ANY),
    opcode_row(ONE, ALL, 0x3c, 0x3c, BYTE),
    opcode_row(ONE, ALL, 0x3d, 0x3d, OPERAND),
    // PUSH, POP
    opcode_row(ONE, ALL, 0x50, 0x5f, BARE),
    opcode_row(ONE, ALL, 0x68, 0x68, OPERAND),
    opcode_row(ONE, ALL, 0x69, 0x69, ANY_OPERAND),
    opcode_row(ONE, ALL, 0x6a, 0x6a, BYTE),
    opcode_row(ONE, ALL, 0x6b, 0x6b, ANY_BYTE),
    opcode_row(ONE, ALL, 0x6c, 0x6f, BARE.with_string_flag()),
    opcode_row(ONE, NOT_66, 0x70, 0x7f, JCC_BYTE),
    opcode_row(ONE, ALL, 0x80, 0x80, ANY_BYTE),
    opcode_row(ONE, ALL, 0x81, 0x81, ANY_OPERAND),
    opcode_row(ONE, ALL, 0x83, 0x83, ANY_BYTE),
    // TEST, XCHG, MOV, LEA, POP
    opcode_row(ONE, ALL, 0x84, 0x8b, ANY),
    opcode_row(ONE, ALL, 0x8d, 0x8d, MEMORY),
    opcode_row(ONE, ALL, 0x8f, 0x8f, ANY.only_modrm_reg_values(1)),
    opcode_row(ONE, ALL, 0x90, 0x99, BARE),
    opcode_row(ONE, ALL, 0x9b, 0x9b, BARE),
    opcode_row(ONE, ALL, 0x9e, 0x9f, BARE),
    opcode_row(ONE, ALL, 0xa4, 0xa7, BARE.with_string_flag()),
    opcode_row(ONE, ALL, 0xa8, 0xa8, BYTE),
    opcode_row(ONE, ALL, 0xa9, 0xa9, OPERAND),
    opcode_row(ONE, ALL, 0xaa, 0xaf, BARE.with_string_flag()),
    opcode_row(ONE, ALL, 0xb0, 0xb7, BYTE),
    opcode_row(
        ONE,
        ALL,
        0xb8,
        0xbf,
        BARE.with_immediate(ImmediateKind::Whole),
    ),
    // shifts
    opcode_row(ONE, ALL, 0xc0, 0xc1, ANY_BYTE),
    opcode_row(ONE, NOT_66, 0xc2, 0xc2, RET_WORD),
    opcode_row(ONE, NOT_66, 0xc3, 0xc3, RET),
    opcode_row(ONE, ALL, 0xc6, 0xc6, ANY_BYTE.only_modrm_reg_values(1)),
    opcode_row(ONE, ALL, 0xc7, 0xc7, ANY_OPERAND.only_modrm_reg_values(1)),
    // ENTER, LEAVE
    opcode_row(ONE, ALL, 0xc8, 0xc8, ENTER),
    opcode_row(ONE, ALL, 0xc9, 0xc9, BARE),
    opcode_row(ONE, ALL, 0xcc, 0xcc, INT),
    opcode_row(ONE, ALL, 0xcd, 0xcd, INT_BYTE),
    opcode_row(ONE, ALL, 0xd0, 0xd3, ANY),
    opcode_row(ONE, ALL, 0xd7, 0xd7, BARE),
    // x87: all memory forms, except those that D9, DB and DD lack
    opcode_row(ONE, ALL, 0xd8, 0xd8, ANY),
    opcode_row(
        ONE,
        ALL,
        0xd9,
        0xd9,
        MEMORY.only_modrm_reg_values(0b1111_1101),
    ),
    opcode_row(ONE, ALL, 0xda, 0xda, MEMORY),
    opcode_row(
        ONE,
        ALL,
        0xdb,
        0xdb,
        MEMORY.only_modrm_reg_values(0b1010_1111),
    ),
    opcode_row(ONE, ALL, 0xdc, 0xdc, MEMORY),
    opcode_row(
        ONE,
        ALL,
        0xdd,
        0xdd,
        MEMORY.only_modrm_reg_values(0b1101_1111),
    ),
    opcode_row(ONE, ALL, 0xde, 0xdf, MEMORY),
    opcode_row(ONE, NOT_66, 0xe0, 0xe3, JCC_BYTE),
    opcode_row(ONE, ALL, 0xe4, 0xe7, BYTE),
    opcode_row(
        ONE,
        NOT_66,
        0xe8,
        0xe8,
        NEAR.with_class(InstructionClass::Call),
    ),
    opcode_row(
        ONE,
        NOT_66,
        0xe9,
        0xe9,
        NEAR.with_class(InstructionClass::Jump),
    ),
    opcode_row(
        ONE,
        NOT_66,
        0xeb,
        0xeb,
        BYTE.with_class(InstructionClass::Jump),
    ),
    opcode_row(ONE, ALL, 0xec, 0xef, BARE),
    opcode_row(ONE, ALL, 0xf4, 0xf5, BARE),
    opcode_row(ONE, ALL, 0xf6, 0xf6, GROUP_3_BYTE),
    opcode_row(ONE, ALL, 0xf7, 0xf7, GROUP_3_OPERAND),
    opcode_row(ONE, ALL, 0xf8, 0xfd, BARE),
    opcode_row(ONE, ALL, 0xfe, 0xfe, ANY.only_modrm_reg_values(0b11)),
    opcode_row(ONE, ALL, 0xff, 0xff, GROUP_5),
    // XGETBV and others, UD2, PREFETCHW, the moves of SSE
    opcode_row(
        M0F,
        N,
        0x01,
        0x01,
        REGISTER.with_special_opcode(SpecialOpcode::Group7),
    ),
    opcode_row(M0F, ALL, 0x0b, 0x0b, BARE),
    opcode_row(M0F, N, 0x0d, 0x0d, MEMORY),
    opcode_row(M0F, ALL, 0x10, 0x11, ANY),
    opcode_row(M0F, N | F3 | F2, 0x12, 0x12, ANY),
    opcode_row(M0F, P66, 0x12, 0x12, MEMORY),
    opcode_row(M0F, N | P66, 0x13, 0x13, MEMORY),
    opcode_row(M0F, N | P66, 0x14, 0x15, ANY),
    opcode_row(M0F, N | F3, 0x16, 0x16, ANY),
    opcode_row(M0F, P66, 0x16, 0x16, MEMORY),
    opcode_row(M0F, N | P66, 0x17, 0x17, MEMORY),
    // PREFETCH, ENDBR, NOP
    opcode_row(M0F, N, 0x18, 0x18, MEMORY),
    opcode_row(
        M0F,
        F3,
        0x1e,
        0x1e,
        REGISTER.only_modrm_reg_values(0b1000_0000),
    ),
    opcode_row(M0F, N | P66, 0x1f, 0x1f, ANY),
    opcode_row(M0F, N | P66, 0x28, 0x29, ANY),
    opcode_row(M0F, ALL, 0x2a, 0x2a, ANY),
    opcode_row(M0F, N | P66, 0x2b, 0x2b, MEMORY),
    opcode_row(M0F, ALL, 0x2c, 0x2d, ANY),
    opcode_row(M0F, N | P66, 0x2e, 0x2f, ANY),
    // WRMSR, RDTSC, RDMSR, RDPMC
    opcode_row(M0F, N, 0x30, 0x33, BARE),
    // CMOVcc
    opcode_row(M0F, N | P66, 0x40, 0x4f, ANY),
    opcode_row(M0F, N | P66, 0x50, 0x50, REGISTER),
    opcode_row(M0F, ALL, 0x51, 0x51, ANY),
    opcode_row(M0F, N | F3, 0x52, 0x53, ANY),
    opcode_row(M0F, N | P66, 0x54, 0x57, ANY),
    opcode_row(M0F, ALL, 0x58, 0x5a, ANY),
    opcode_row(M0F, N | P66 | F3, 0x5b, 0x5b, ANY),
    opcode_row(M0F, ALL, 0x5c, 0x5f, ANY),
    opcode_row(M0F, N | P66, 0x60, 0x6b, ANY),
    opcode_row(M0F, P66, 0x6c, 0x6d, ANY),
    opcode_row(M0F, N | P66, 0x6e, 0x6e, ANY),
    opcode_row(M0F, N | P66 | F3, 0x6f, 0x6f, ANY),
    opcode_row(M0F, ALL, 0x70, 0x70, ANY_BYTE),
    opcode_row(
        M0F,
        N | P66,
        0x71,
        0x72,
        REGISTER_BYTE.only_modrm_reg_values(0b0101_0100),
    ),
    opcode_row(
        M0F,
        N,
        0x73,
        0x73,
        REGISTER_BYTE.only_modrm_reg_values(0b0100_0100),
    ),
    opcode_row(
        M0F,
        P66,
        0x73,
        0x73,
        REGISTER_BYTE.only_modrm_reg_values(0b1100_1100),
    ),
    opcode_row(M0F, N | P66, 0x74, 0x76, ANY),
    opcode_row(M0F, N, 0x77, 0x77, BARE),
    opcode_row(M0F, P66 | F2, 0x7c, 0x7d, ANY),
    opcode_row(M0F, N | P66 | F3, 0x7e, 0x7f, ANY),
    opcode_row(M0F, NOT_66, 0x80, 0x8f, JCC_NEAR),
    // SETcc, PUSH and POP of FS and GS, CPUID, bits and double shifts
    opcode_row(M0F, ALL, 0x90, 0x9f, ANY),
    opcode_row(M0F, N, 0xa0, 0xa2, BARE),
    opcode_row(M0F, N | P66, 0xa3, 0xa3, ANY),
    opcode_row(M0F, N | P66, 0xa4, 0xa4, ANY_BYTE),
    opcode_row(M0F, N | P66, 0xa5, 0xa5, ANY),
    opcode_row(M0F, N, 0xa8, 0xa9, BARE),
    opcode_row(M0F, N | P66, 0xab, 0xab, ANY),
    opcode_row(M0F, N | P66, 0xac, 0xac, ANY_BYTE),
    opcode_row(M0F, N | P66, 0xad, 0xad, ANY),
    // FXSAVE to CLFLUSH, fences
    opcode_row(
        M0F,
        N,
        0xae,
        0xae,
        ANY.only_modrm_register_values(0b1110_0000),
    ),
    opcode_row(M0F, N | P66, 0xaf, 0xb1, ANY),
    opcode_row(M0F, N | P66, 0xb3, 0xb3, ANY),
    opcode_row(M0F, N | P66, 0xb6, 0xb7, ANY),
    opcode_row(M0F, F3, 0xb8, 0xb8, ANY),
    opcode_row(
        M0F,
        N | P66,
        0xba,
        0xba,
        ANY_BYTE.only_modrm_reg_values(0b1111_0000),
    ),
    opcode_row(M0F, N | P66, 0xbb, 0xbb, ANY),
    opcode_row(M0F, N | P66 | F3, 0xbc, 0xbd, ANY),
    opcode_row(M0F, N | P66, 0xbe, 0xc1, ANY),
    opcode_row(M0F, ALL, 0xc2, 0xc2, ANY_BYTE),
    opcode_row(M0F, N, 0xc3, 0xc3, MEMORY),
    opcode_row(M0F, N | P66, 0xc4, 0xc4, ANY_BYTE),
    opcode_row(M0F, N | P66, 0xc5, 0xc5, REGISTER_BYTE),
    opcode_row(M0F, N | P66, 0xc6, 0xc6, ANY_BYTE),
    opcode_row(M0F, N, 0xc7, 0xc7, MEMORY.only_modrm_reg_values(0b10)),
    opcode_row(M0F, N, 0xc8, 0xcf, BARE),
    opcode_row(M0F, P66 | F2, 0xd0, 0xd0, ANY),
    opcode_row(M0F, N | P66, 0xd1, 0xd5, ANY),
    opcode_row(M0F, P66, 0xd6, 0xd6, ANY),
    opcode_row(M0F, N | P66, 0xd7, 0xd7, REGISTER),
    opcode_row(M0F, N | P66, 0xd8, 0xe5, ANY),
    opcode_row(M0F, P66 | F3 | F2, 0xe6, 0xe6, ANY),
    opcode_row(M0F, N | P66, 0xe7, 0xe7, MEMORY),
    opcode_row(M0F, N | P66, 0xe8, 0xef, ANY),
    opcode_row(M0F, F2, 0xf0, 0xf0, MEMORY),
    opcode_row(M0F, N | P66, 0xf1, 0xf6, ANY),
    opcode_row(M0F, N | P66, 0xf7, 0xf7, REGISTER),
    opcode_row(M0F, N | P66, 0xf8, 0xfe, ANY),
    // SSSE3 and SSE4, AES, SHA, MOVBE, CRC32, ADX
    opcode_row(M0F38, N | P66, 0x00, 0x0b, ANY),
    opcode_row(M0F38, P66, 0x10, 0x10, ANY),
    opcode_row(M0F38, P66, 0x14, 0x15, ANY),
    opcode_row(M0F38, P66, 0x17, 0x17, ANY),
    opcode_row(M0F38, N | P66, 0x1c, 0x1e, ANY),
    opcode_row(M0F38, P66, 0x20, 0x25, ANY),
    opcode_row(M0F38, P66, 0x28, 0x29, ANY),
    opcode_row(M0F38, P66, 0x2a, 0x2a, MEMORY),
    opcode_row(M0F38, P66, 0x2b, 0x2b, ANY),
    opcode_row(M0F38, P66, 0x30, 0x35, ANY),
    opcode_row(M0F38, P66, 0x37, 0x41, ANY),
    opcode_row(M0F38, N, 0xc8, 0xcd, ANY),
    opcode_row(M0F38, P66, 0xdb, 0xdf, ANY),
    opcode_row(M0F38, N | P66, 0xf0, 0xf1, MEMORY),
    opcode_row(M0F38, F2, 0xf0, 0xf1, ANY),
    opcode_row(M0F38, P66 | F3, 0xf6, 0xf6, ANY),
    opcode_row(M0F3A, P66, 0x08, 0x0e, ANY_BYTE),
    opcode_row(M0F3A, N | P66, 0x0f, 0x0f, ANY_BYTE),
    opcode_row(M0F3A, P66, 0x14, 0x17, ANY_BYTE),
    opcode_row(M0F3A, P66, 0x20, 0x22, ANY_BYTE),
    opcode_row(M0F3A, P66, 0x40, 0x42, ANY_BYTE),
    opcode_row(M0F3A, P66, 0x44, 0x44, ANY_BYTE),
    opcode_row(M0F3A, P66, 0x60, 0x63, ANY_BYTE),
    opcode_row(M0F3A, N, 0xcc, 0xcc, ANY_BYTE),
    opcode_row(M0F3A, P66, 0xdf, 0xdf, ANY_BYTE),
];

/// With a LOCK prefix: instructions that read, change and write a memory operand.
const LOCKED: &[OpcodeRow] = &[
    opcode_row(ONE, LOCK, 0x00, 0x01, MEMORY),
    opcode_row(ONE, LOCK, 0x08, 0x09, MEMORY),
    opcode_row(ONE, LOCK, 0x10, 0x11, MEMORY),
    opcode_row(ONE, LOCK, 0x18, 0x19, MEMORY),
    opcode_row(ONE, LOCK, 0x20, 0x21, MEMORY),
    opcode_row(ONE, LOCK, 0x28, 0x29, MEMORY),
    opcode_row(ONE, LOCK, 0x30, 0x31, MEMORY),
    opcode_row(ONE, LOCK, 0x80, 0x80, LOCKED_BYTE),
    opcode_row(ONE, LOCK, 0x81, 0x81, LOCKED_OPERAND),
    opcode_row(ONE, LOCK, 0x83, 0x83, LOCKED_BYTE),
    opcode_row(ONE, LOCK, 0x86, 0x87, MEMORY),
    opcode_row(ONE, LOCK, 0xf6, 0xf7, MEMORY.only_modrm_reg_values(0b1100)),
    opcode_row(ONE, LOCK, 0xfe, 0xff, MEMORY.only_modrm_reg_values(0b11)),
    opcode_row(M0F, LOCK, 0xab, 0xab, MEMORY),
    opcode_row(M0F, LOCK, 0xb0, 0xb1, MEMORY),
    opcode_row(M0F, LOCK, 0xb3, 0xb3, MEMORY),
    opcode_row(M0F, LOCK, 0xba, 0xba, LOCKED_BITS),
    opcode_row(M0F, LOCK, 0xbb, 0xbb, MEMORY),
    opcode_row(M0F, LOCK, 0xc0, 0xc1, MEMORY),
    opcode_row(M0F, LOCK, 0xc7, 0xc7, MEMORY.only_modrm_reg_values(0b10)),
];

const ONLY_64: &[OpcodeRow] = &[
    // MOVSXD
    opcode_row(ONE, ALL, 0x63, 0x63, ANY),
    // 66 does not affect near branches (SDM volume 2, appendix A, superscript f64)
    opcode_row(ONE, P66, 0x70, 0x7f, JCC_BYTE),
    opcode_row(
        ONE,
        ALL,
        0xa0,
        0xa3,
        BARE.with_special_opcode(SpecialOpcode::Offset),
    ),
    opcode_row(ONE, P66, 0xc2, 0xc2, RET_WORD),
    opcode_row(ONE, P66, 0xc3, 0xc3, RET),
    opcode_row(ONE, P66, 0xe0, 0xe3, JCC_BYTE),
    opcode_row(
        ONE,
        P66,
        0xe8,
        0xe8,
        NEAR.with_class(InstructionClass::Call),
    ),
    opcode_row(
        ONE,
        P66,
        0xe9,
        0xe9,
        NEAR.with_class(InstructionClass::Jump),
    ),
    opcode_row(
        ONE,
        P66,
        0xeb,
        0xeb,
        BYTE.with_class(InstructionClass::Jump),
    ),
    opcode_row(
        M0F,
        ALL,
        0x05,
        0x05,
        BARE.with_class(InstructionClass::Syscall),
    ),
    opcode_row(M0F, P66, 0x80, 0x8f, JCC_NEAR),
];

const ONLY_32: &[OpcodeRow] = &[
    // INC, DEC
    opcode_row(ONE, ALL, 0x40, 0x4f, BARE),
    opcode_row(ONE, ALL, 0xa0, 0xa3, NEAR),
];

/// The forms by map, prefix and opcode.
pub(super) struct LegacyForms([[[OpcodeForm; 256]; 8]; 4]);

impl LegacyForms {
    pub const BITS_64: LegacyForms = LegacyForms::from_rows(&[BOTH, LOCKED, ONLY_64]);

    const fn from_rows(lists: &[&[OpcodeRow]]) -> LegacyForms {
        let mut forms = [[[OpcodeForm::UNKNOWN; 256]; 8]; 4];
        let mut list = 0;
        while list < lists.len() {
            let mut at = 0;
            while at < lists[list].len() {
                let row = &lists[list][at];
                let mut prefix = 0;
                while prefix < 8 {
                    if row.prefixes >> prefix & 1 != 0 {
                        row.fill_forms(&mut forms[row.map as usize][prefix]);
                    }
                    prefix += 1;
                }
                at += 1;
            }
            list += 1;
        }
        LegacyForms(forms)
    }

    /// `map`: 0 one byte, 1 0F, 2 0F 38, 3 0F 3A.
    #[inline(always)]
    pub const fn form_of_opcode(&self, map: usize, prefix: usize, opcode: u8) -> OpcodeForm {
        self.0[map & 3][prefix & 7][opcode as usize]
    }
}

pub(super) static BITS_64: LegacyForms = LegacyForms::BITS_64;
pub(super) static BITS_32: LegacyForms = LegacyForms::from_rows(&[BOTH, LOCKED, ONLY_32]);
