//! What an x86 instruction means to Intel PT: its class, its length, its direct target.
//!
//! ```
//! use rtit_x86::{decode, InstructionClass, CodeMode};
//! let je = decode(&[0x74, 0x10], 0x1000, CodeMode::Bits64).unwrap();
//! assert_eq!((je.class, je.length, je.target), (InstructionClass::Conditional, 2, 0x1012));
//! ```
//!
//! [`decode`] is the only entry, beside [`format_instruction`] for text. It tries three decoders, from fast to
//! complete: `table_decoder` knows the common instructions; `apx` the encodings that iced-x86 lacks (REX2 prefixes,
//! JMPABS); `iced_decoder` the rest. The class comes from iced-x86's `Code`, not from its `FlowControl`, which does
//! not separate far transfers, SYSCALL and VM entries from near calls and returns, as PT does (section 33.2.1,
//! Table 33-1).

#![forbid(unsafe_code)]

mod apx;
mod class;
mod iced_decoder;
mod instruction;
mod table_decoder;

pub use class::InstructionClass;
pub use iced_decoder::format_instruction;
pub use instruction::{CodeMode, Instruction, UndecodableReason, MAX_LENGTH};

/// Decodes the instruction at `ip` from the start of `bytes` (15 are always enough).
#[inline]
pub fn decode(bytes: &[u8], ip: u64, mode: CodeMode) -> Result<Instruction, UndecodableReason> {
    if let Some(instruction) = table_decoder::decode_near_branch(bytes, ip, mode) {
        return Ok(instruction);
    }
    decode_uncommon_instruction(bytes, ip, mode)
}

/// Returns the length of the instruction of 64-bit code at the start of `bytes`, if it is a common one of class
/// `Other`; 0: call `decode`. With 16 bytes no instruction is cut off.
#[inline(always)]
pub fn plain_length(bytes: &[u8; 16]) -> usize {
    bytes
        .first_chunk()
        .map_or(0, table_decoder::plain_length::plain_length)
}

fn decode_uncommon_instruction(
    bytes: &[u8],
    ip: u64,
    mode: CodeMode,
) -> Result<Instruction, UndecodableReason> {
    if let Some(instruction) = table_decoder::decode_by_table(bytes, ip, mode) {
        return Ok(instruction);
    }
    if mode == CodeMode::Bits64 {
        if let Some(result) = apx::decode_apx(bytes, ip) {
            return result;
        }
    }
    iced_decoder::decode(bytes, ip, mode)
}

#[cfg(test)]
mod tests;
