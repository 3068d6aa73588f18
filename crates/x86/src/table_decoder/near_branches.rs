//! Direct near branches and RET in 64-bit code, without prefixes: one in five executed instructions.

use super::opcode_form::DECODE_WINDOW;
use crate::class::Class;
use crate::instruction::{Instruction, Mode};

/// Decodes the instruction at `ip`, if it is one of these and `bytes` has as many bytes as the longest instruction.
#[inline(always)]
pub(crate) fn decode(bytes: &[u8], ip: u64, mode: Mode) -> Option<Instruction> {
    let bytes: &[u8; DECODE_WINDOW] = bytes.first_chunk()?;
    if mode != Mode::Bits64 {
        return None;
    }
    let short = i64::from(bytes[1] as i8);
    let long = |at: usize| {
        let last = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        i64::from(i32::from_le_bytes(last))
    };
    let (class, length, offset) = match bytes[0] {
        0x70..=0x7f => (Class::Conditional, 2, short),
        0xeb => (Class::Jump, 2, short),
        0xe8 => (Class::Call, 5, long(1)),
        0xe9 => (Class::Jump, 5, long(1)),
        0x0f if bytes[1] & 0xf0 == 0x80 => (Class::Conditional, 6, long(2)),
        0xc3 => (Class::Return, 1, 0),
        _ => return None,
    };
    let target = match class {
        Class::Return => 0,
        _ => ip.wrapping_add(length).wrapping_add_signed(offset),
    };
    Some(Instruction {
        ip,
        length: length as u8,
        class,
        target,
        repeats: false,
        shadows: false,
        pushes_flags: false,
        pops_flags: false,
        narrow: false,
        mode,
    })
}
