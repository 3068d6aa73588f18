//! The length of plain instructions in 64-bit code, which have no meaning for PT, by two small tables computed from the
//! rows.

use super::opcode_form::{OpcodeForm, OperandSize, SpecialOpcode, AFTER_MODRM};
use super::opcode_rows::LegacyForms;
use crate::class::InstructionClass;

/// For each kind of instruction and each ModRM: the bytes of ModRM and what it implies, and two marks.
type Operands = [u8; KINDS << 8];

/// Mark: four more bytes if the SIB has no base.
const SIB_ALONE: u8 = 0x40;
/// Mark: not plain.
const NOT_PLAIN: u8 = 0x80;
const KINDS: usize = 16;
/// The kind of instructions that are not plain for any ModRM.
const NOT_PLAIN_KIND: u8 = 15;
/// The kinds of group 3, by bytes of the immediate of TEST.
const GROUP_3: [(usize, u8); 3] = [(1, 8), (2, 9), (4, 10)];
/// The permitted ModRM values of the other kinds, as in `OpcodeForm`. The first has no ModRM.
const MASKS: [u16; 8] = [0, 0xffff, 0x00ff, 0xff00, 0x0101, 0x0303, 0x4343, 0xf0f0];
/// Of group 5: INC, DEC and PUSH, which are no branches.
const GROUP_5: u16 = 0x4343;

/// Opcodes without prefix and after 66, F3 and F2; one-byte opcodes, then 0F; then all again with REX.W.
const FORMS: usize = 8 << 9;

/// Upper half: the kind. Lower half: bytes of opcode and immediate.
static PLAIN: [u8; FORMS] = plain_forms();
static OPERANDS: Operands = operand_lengths();

/// Returns the length of the instruction if it has at most one prefix of 66, F3 and F2, a REX prefix and an opcode of
/// one or two bytes. 0 for others, for instructions that are not plain, and for unknown ones.
#[inline(always)]
pub(crate) fn plain_length(bytes: &[u8; 8]) -> usize {
    let mut word = u64::from_le_bytes(*bytes);
    let (mut length, mut row) = (0, 0);
    if let Some(prefix) = prefix_selector(word as u8) {
        (length, row) = (1, prefix << 9);
        word >>= 8;
    }
    let rex = usize::from(word as u8 & 0xf0 == 0x40);
    row |= (word as usize >> 3 & rex) << 11;
    word >>= 8 * rex;
    let escape = usize::from(word as u8 == 0x0f);
    row |= escape << 8;
    word >>= 8 * escape;
    let form = PLAIN[(row | word as usize & 0xff) % FORMS];
    let after = OPERANDS[usize::from(form >> 4) << 8 | (word >> 8) as usize & 0xff];
    if after >= NOT_PLAIN {
        return 0;
    }
    let alone = usize::from(after & SIB_ALONE != 0 && word >> 16 & 7 == 5);
    length += rex + escape + usize::from(form & 0xf);
    length + usize::from(after % SIB_ALONE) + 4 * alone
}

#[inline(always)]
const fn prefix_selector(byte: u8) -> Option<usize> {
    match byte {
        0x66 => Some(1),
        0xf3 => Some(2),
        0xf2 => Some(3),
        _ => None,
    }
}

const fn plain_forms() -> [u8; FORMS] {
    let legacy = LegacyForms::BITS_64;
    let mut forms = [NOT_PLAIN_KIND << 4; FORMS];
    let mut at = 0;
    while at < FORMS {
        let (prefix, map, wide) = (at >> 9 & 3, at >> 8 & 1, at >> 11 != 0);
        let operand = match (wide, prefix) {
            (true, _) => OperandSize::Quad,
            (false, 1) => OperandSize::Word,
            _ => OperandSize::Double,
        };
        let form = legacy.form_of_opcode(map, prefix, at as u8);
        if let Some((kind, immediate)) = plain_kind(form, operand) {
            forms[at] = kind << 4 | (1 + immediate as u8);
        }
        at += 1;
    }
    forms
}

/// Returns the kind, and the bytes of the immediate; the kind includes those of group 3.
const fn plain_kind(form: OpcodeForm, operand: OperandSize) -> Option<(u8, usize)> {
    if !form.is_opcode_known()
        || form.is_string_instruction()
        || !matches!(form.instruction_class(), InstructionClass::Other)
    {
        return None;
    }
    let immediate = form.immediate_size(operand);
    let mut mask = if form.has_modrm() {
        form.allowed_modrm_bits()
    } else {
        0
    };
    match form.special_opcode() {
        None => {}
        Some(SpecialOpcode::Group5) => mask &= GROUP_5,
        Some(SpecialOpcode::Group3) => {
            let mut at = 0;
            while at < GROUP_3.len() {
                if GROUP_3[at].0 == immediate {
                    return Some((GROUP_3[at].1, 0));
                }
                at += 1;
            }
            return None;
        }
        Some(_) => return None,
    }
    let mut kind = 0;
    while kind < MASKS.len() {
        if MASKS[kind] == mask && (kind == 0) != form.has_modrm() {
            return Some((kind as u8, immediate));
        }
        kind += 1;
    }
    None
}

const fn operand_lengths() -> Operands {
    let mut lengths = [NOT_PLAIN; KINDS << 8];
    let mut modrm = 0;
    while modrm < 256 {
        lengths[modrm] = 0;
        let (register, reg) = (modrm >= 0xc0, modrm >> 3 & 7);
        let mut length = AFTER_MODRM[modrm];
        if modrm & 0xc7 == 4 {
            length |= SIB_ALONE;
        }
        let mut kind = 1;
        while kind < MASKS.len() {
            if MASKS[kind] >> (reg | (register as usize) << 3) & 1 != 0 {
                lengths[kind << 8 | modrm] = length;
            }
            kind += 1;
        }
        let mut group = 0;
        while group < GROUP_3.len() {
            let (immediate, kind) = GROUP_3[group];
            let test = if reg < 2 { immediate as u8 } else { 0 };
            lengths[(kind as usize) << 8 | modrm] = length + test;
            group += 1;
        }
        modrm += 1;
    }
    lengths
}
