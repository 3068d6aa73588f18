//! What an x86 instruction means to Intel PT: its class, its length, its direct target.
//!
//! ```
//! use rtit_x86::{decode, Class, Mode};
//! let je = decode(&[0x74, 0x10], 0x1000, Mode::Bits64).unwrap();
//! assert_eq!((je.class, je.length, je.target), (Class::Conditional, 2, 0x1012));
//! ```
//!
//! [`decode`] is the only entry, beside [`format`](fn@format) for text. The class comes from iced-x86's `Code`, not from its
//! `FlowControl`, which lumps far transfers, SYSCALL and VM entries with near calls and returns; PT tells them apart (section
//! 33.2.1, Table 33-1). `quick` decodes the usual instructions by tables, `known` what iced-x86 knows, `apx` the encodings
//! that it does not (REX2 prefixes, JMPABS).

#![forbid(unsafe_code)]

mod apx;
mod class;
mod instruction;
mod known;
mod quick;
mod text;

pub use class::Class;
pub use instruction::{Instruction, Mode, Undecodable, MAX_LENGTH};
pub use text::format;

/// Decodes the instruction at `ip`, whose bytes are at the start of `bytes` (15 are always enough).
#[inline]
pub fn decode(bytes: &[u8], ip: u64, mode: Mode) -> Result<Instruction, Undecodable> {
    if let Some(instruction) = quick::near::decode(bytes, ip, mode) {
        return Ok(instruction);
    }
    decode_any(bytes, ip, mode)
}

/// The length of the instruction of 64-bit code at the start of `bytes` if it is one of the usual ones of class `Other`,
/// as `decode` has it; 0: ask `decode`. 16 bytes, so that no instruction ends behind them.
#[inline(always)]
pub fn plain_length(bytes: &[u8; 16]) -> usize {
    bytes.first_chunk().map_or(0, quick::plain::length)
}

fn decode_any(bytes: &[u8], ip: u64, mode: Mode) -> Result<Instruction, Undecodable> {
    if let Some(instruction) = quick::decode(bytes, ip, mode) {
        return Ok(instruction);
    }
    if mode == Mode::Bits64 {
        if let Some(result) = apx::decode(bytes, ip) {
            return result;
        }
    }
    known::decode(bytes, ip, mode)
}

#[cfg(test)]
mod tests;
