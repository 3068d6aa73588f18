//! APX encodings: the REX2 prefix (D5) and JMPABS.
//!
//! A REX2 prefix is two bytes and selects opcode map 0 or 1 itself, so that `D5 p op` stands for `REX op` or `REX 0F
//! op`. The instruction is decoded in that older form and its length and target are put right: REX2 adds registers,
//! never bytes.

use crate::class::InstructionClass;
use crate::iced_decoder;
use crate::instruction::{CodeMode, Instruction, UndecodableReason, MAX_LENGTH};

const REX2: u8 = 0xd5;
const JMPABS_OPCODE: u8 = 0xa1;

/// Decodes the instruction if it has a REX2 prefix; None leaves it to the ordinary decoder.
pub(crate) fn decode_apx(bytes: &[u8], ip: u64) -> Option<Result<Instruction, UndecodableReason>> {
    let bytes = &bytes[..bytes.len().min(MAX_LENGTH)];
    let at = bytes.iter().position(|byte| !is_legacy_prefix(*byte))?;
    if bytes[at] != REX2 {
        return None;
    }
    let decoded = decode_rex2(bytes, at, ip);
    let whole = bytes.len() == MAX_LENGTH;
    Some(decoded.map_err(|error| {
        if whole {
            UndecodableReason::Invalid
        } else {
            error
        }
    }))
}

fn decode_rex2(bytes: &[u8], at: usize, ip: u64) -> Result<Instruction, UndecodableReason> {
    let (Some(&payload), Some(&opcode)) = (bytes.get(at + 1), bytes.get(at + 2)) else {
        return Err(UndecodableReason::Truncated);
    };
    let map1 = payload & 0x80 != 0;
    if !map1 && payload & 0x08 == 0 && opcode == JMPABS_OPCODE {
        return decode_jmpabs(bytes, at, ip);
    }
    let mut older = [0u8; MAX_LENGTH + 1];
    let mut length = 0;
    let escape: &[u8] = if map1 { &[0x0f] } else { &[] };
    let tail = &bytes[at + 2..bytes.len().min(MAX_LENGTH)];
    for &byte in bytes[..at]
        .iter()
        .chain(&[0x40 | payload & 0x0f])
        .chain(escape)
        .chain(tail)
    {
        if let Some(slot) = older.get_mut(length) {
            *slot = byte;
            length += 1;
        }
    }
    let mut decoded = iced_decoder::decode(&older[..length], ip, CodeMode::Bits64)?;
    let added = u8::from(!map1);
    decoded.length += added;
    if decoded.target != 0 {
        decoded.target = decoded.target.wrapping_add(u64::from(added));
    }
    Ok(decoded)
}

fn decode_jmpabs(bytes: &[u8], at: usize, ip: u64) -> Result<Instruction, UndecodableReason> {
    let length = at + 11;
    if length > MAX_LENGTH {
        return Err(UndecodableReason::Invalid);
    }
    if bytes.len() < length {
        return Err(UndecodableReason::Truncated);
    }
    // Direct, but traced by a TIP as an indirect jump is: the target in the bytes is not needed.
    let class = InstructionClass::IndirectJump;
    Ok(Instruction::without_target(
        ip,
        length as u8,
        class,
        CodeMode::Bits64,
    ))
}

#[inline(always)]
pub(crate) const fn is_legacy_prefix(byte: u8) -> bool {
    matches!(
        byte,
        0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
    )
}
