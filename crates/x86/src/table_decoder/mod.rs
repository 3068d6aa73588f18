//! Decodes length and class of common instructions by tables, at a tenth of the cost of a full decoder.
//!
//! Instructions that `opcode_rows` does not list are unknown here, even if they are legal; `iced_decoder` then decides.
//! An instruction may be missing from the rows, but none may differ from the full decoder. The tests compare all of
//! them.

mod opcode_form;
mod opcode_rows;
pub(crate) mod plain_length;
#[cfg(test)]
mod tests;
mod vex_rows;

use opcode_form::{OperandSize, SpecialOpcode, AFTER_MODRM, DECODE_WINDOW};
use opcode_rows::{LegacyForms, BITS_32, BITS_64};

use crate::apx::is_legacy_prefix;
use crate::class::InstructionClass;
use crate::instruction::{CodeMode, Instruction, MAX_LENGTH};

/// Prefixes before a REX prefix or the opcode; more are unknown here.
const MOST_PREFIXES: usize = 8;

const REX_W: u8 = 8;

/// Decodes the instruction at `ip`, if it is a common one and `bytes` has as many bytes as the longest instruction.
#[inline]
pub(crate) fn decode_by_table(bytes: &[u8], ip: u64, mode: CodeMode) -> Option<Instruction> {
    let bytes: &[u8; DECODE_WINDOW] = bytes.first_chunk()?;
    match mode {
        CodeMode::Bits64 => decode_by_table_for_mode::<true>(bytes, ip, &BITS_64),
        CodeMode::Bits32 => decode_by_table_for_mode::<false>(bytes, ip, &BITS_32),
        CodeMode::Bits16 => None,
    }
}

/// `WIDE`: 64-bit code.
fn decode_by_table_for_mode<const WIDE: bool>(
    bytes: &[u8; DECODE_WINDOW],
    ip: u64,
    rows: &LegacyForms,
) -> Option<Instruction> {
    let mut at = 0;
    // 66, F3 or F2, numbered as in a VEX prefix, or LOCK.
    let mut selector = 0;
    let mut short_address = false;
    let mut byte = bytes[0];
    while is_legacy_prefix(byte) {
        match (byte, selector) {
            (0x66, 0 | 1) => selector = 1,
            (0xf3, 0 | 2) => selector = 2,
            (0xf2, 0 | 3) => selector = 3,
            (0xf0, 0 | 4) => selector = 4,
            (0x66 | 0xf0 | 0xf2 | 0xf3, _) => return None,
            // In 32-bit code, memory operands would have the 16-bit form.
            (0x67, _) if !WIDE => return None,
            (0x67, _) => short_address = true,
            _ => {}
        }
        at += 1;
        if at > MOST_PREFIXES {
            return None;
        }
        byte = bytes[at];
    }
    let mut rex = 0;
    if WIDE && byte & 0xf0 == 0x40 {
        rex = byte;
        at += 1;
        byte = bytes[at];
    }
    at += 1;
    let form = match byte {
        0x0f => {
            let (map, opcode) = match bytes[at] {
                0x38 => (2, bytes[at + 1]),
                0x3a => (3, bytes[at + 1]),
                opcode => (1, opcode),
            };
            at += if map == 1 { 1 } else { 2 };
            rows.form_of_opcode(map, selector, opcode)
        }
        0xc4 | 0xc5 if WIDE && at == 1 => vex_rows::read_vex_form(bytes, &mut at),
        opcode => rows.form_of_opcode(0, selector, opcode),
    };
    if !form.is_opcode_known() {
        return None;
    }
    let mut modrm = 0;
    if form.has_modrm() {
        modrm = *bytes.get(at)?;
        if !form.allows_modrm(modrm) {
            return None;
        }
        let sib = *bytes.get(at + 1)?;
        at += usize::from(AFTER_MODRM[usize::from(modrm)]);
        if modrm & 0xc7 == 0x04 && sib & 7 == 5 {
            at += 4;
        }
    }
    let operand = match (rex & REX_W != 0, selector) {
        (true, _) => OperandSize::Quad,
        (false, 1) => OperandSize::Word,
        (false, _) => OperandSize::Double,
    };
    let mut class = form.instruction_class();
    at += match form.special_opcode() {
        None => form.immediate_size(operand),
        // Only TEST has an immediate.
        Some(SpecialOpcode::Group3) if modrm >> 3 & 7 > 1 => 0,
        Some(SpecialOpcode::Group3) => form.immediate_size(operand),
        Some(SpecialOpcode::Group5) => {
            class = match modrm >> 3 & 7 {
                2 => InstructionClass::IndirectCall,
                4 => InstructionClass::IndirectJump,
                _ => InstructionClass::Other,
            };
            0
        }
        Some(SpecialOpcode::Group7) if matches!(modrm, 0xd0 | 0xd6 | 0xf9) => 0,
        Some(SpecialOpcode::Group7) => return None,
        Some(SpecialOpcode::Offset) => match short_address {
            true => 4,
            false => 8,
        },
    };
    if at > MAX_LENGTH {
        return None;
    }
    let mode = if WIDE {
        CodeMode::Bits64
    } else {
        CodeMode::Bits32
    };
    let mut instruction = Instruction::without_target(ip, at as u8, class, mode);
    instruction.repeats = form.is_string_instruction() && matches!(selector, 2 | 3);
    if let Some(wide) = form.has_large_displacement() {
        let offset = match wide {
            false => i64::from(bytes[at - 1] as i8),
            true => {
                let last = bytes.get(at - 4..at)?.try_into().ok()?;
                i64::from(i32::from_le_bytes(last))
            }
        };
        let next = ip.wrapping_add(at as u64);
        instruction.target = instruction
            .mode
            .truncate_ip(next.wrapping_add_signed(offset));
    }
    Some(instruction)
}

/// Decodes the instruction at `ip`, if it is a direct near branch or RET in 64-bit code, without prefixes, and `bytes`
/// has as many bytes as the longest instruction. One in five executed instructions is.
#[inline(always)]
pub(crate) fn decode_near_branch(bytes: &[u8], ip: u64, mode: CodeMode) -> Option<Instruction> {
    let bytes: &[u8; DECODE_WINDOW] = bytes.first_chunk()?;
    if mode != CodeMode::Bits64 {
        return None;
    }
    let short = i64::from(bytes[1] as i8);
    let long = |at: usize| {
        let last = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        i64::from(i32::from_le_bytes(last))
    };
    let (class, length, offset) = match bytes[0] {
        0x70..=0x7f => (InstructionClass::Conditional, 2, short),
        0xeb => (InstructionClass::Jump, 2, short),
        0xe8 => (InstructionClass::Call, 5, long(1)),
        0xe9 => (InstructionClass::Jump, 5, long(1)),
        0x0f if bytes[1] & 0xf0 == 0x80 => (InstructionClass::Conditional, 6, long(2)),
        0xc3 => (InstructionClass::Return, 1, 0),
        _ => return None,
    };
    let target = match class {
        InstructionClass::Return => 0,
        _ => ip.wrapping_add(length).wrapping_add_signed(offset),
    };
    Some(Instruction {
        target,
        ..Instruction::without_target(ip, length as u8, class, mode)
    })
}
