//! What an x86 instruction means to Intel PT: its class, its length, its direct target.
//!
//! `decode` is the only entry. The class comes from iced-x86's `Code`, not from its `FlowControl`, which lumps far
//! transfers, SYSCALL and VM entries with near calls and returns; PT tells them apart (section 33.2.1, Table 33-1).
//! APX encodings that iced-x86 does not know (REX2 prefixes, JMPABS) are handled in `apx`.

mod apx;
mod class;
mod text;

pub use class::Class;
pub use text::format;

use iced_x86::{Decoder, DecoderError, DecoderOptions};

/// The longest legal instruction, in bytes.
pub const MAX_LENGTH: usize = 15;

/// The operating mode that code is decoded in (MODE.Exec reports it).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Mode {
    Bits16,
    Bits32,
    Bits64,
}

impl Mode {
    /// The width of an instruction pointer, in bits.
    pub const fn bits(self) -> u32 {
        match self {
            Mode::Bits16 => 16,
            Mode::Bits32 => 32,
            Mode::Bits64 => 64,
        }
    }

    /// `ip` cut to the width of this mode. 16-bit code keeps 32 bits: a linear IP has the CS base added.
    pub const fn truncate(self, ip: u64) -> u64 {
        match self {
            Mode::Bits64 => ip,
            Mode::Bits16 | Mode::Bits32 => ip & 0xffff_ffff,
        }
    }
}

/// One decoded instruction, reduced to what PT and a tracer need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    pub ip: u64,
    /// 1 to 15 bytes.
    pub length: u8,
    pub class: Class,
    /// The target of a direct branch or call (for XBEGIN: the abort handler), otherwise 0.
    pub target: u64,
    /// A string instruction with a REP, REPE or REPNE prefix.
    pub repeats: bool,
    /// MOV SS and POP SS: no single-step trap is taken after this instruction, only after the next one.
    pub shadows: bool,
    /// PUSHF: stores RFLAGS, the trap flag included.
    pub pushes_flags: bool,
    mode: Mode,
}

impl Instruction {
    /// The address of the instruction that follows in memory.
    pub const fn next(&self) -> u64 {
        self.mode.truncate(self.ip.wrapping_add(self.length as u64))
    }

    /// A direct call with displacement 0 only reads the IP: it never pushes on the return-compression stack.
    pub const fn calls_next(&self) -> bool {
        matches!(self.class, Class::Call) && self.target == self.next()
    }
}

/// Why bytes are no instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undecodable {
    /// The bytes end inside the instruction.
    Truncated,
    /// The bytes are no legal instruction of this mode.
    Invalid,
}

impl std::fmt::Display for Undecodable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Undecodable::Truncated => "the code bytes end inside an instruction",
            Undecodable::Invalid => "the bytes are no instruction",
        })
    }
}

impl std::error::Error for Undecodable {}

/// Decodes the instruction at `ip`, whose bytes are at the start of `bytes` (15 are always enough).
pub fn decode(bytes: &[u8], ip: u64, mode: Mode) -> Result<Instruction, Undecodable> {
    if mode == Mode::Bits64 {
        if let Some(result) = apx::decode(bytes, ip) {
            return result;
        }
    }
    decode_known(bytes, ip, mode)
}

fn decode_known(bytes: &[u8], ip: u64, mode: Mode) -> Result<Instruction, Undecodable> {
    let bytes = &bytes[..bytes.len().min(MAX_LENGTH)];
    let mut decoder = Decoder::with_ip(mode.bits(), bytes, ip, DecoderOptions::NONE);
    let decoded = decoder.decode();
    if decoded.is_invalid() {
        let ended = decoder.last_error() == DecoderError::NoMoreBytes && bytes.len() < MAX_LENGTH;
        return Err(if ended && could_go_on(bytes, mode) {
            Undecodable::Truncated
        } else {
            Undecodable::Invalid
        });
    }
    let class = Class::of(&decoded);
    Ok(Instruction {
        ip,
        length: decoded.len() as u8,
        class,
        target: class::direct_target(&decoded, class),
        repeats: class::repeats(&decoded),
        shadows: class::shadows(&decoded),
        pushes_flags: class::pushes_flags(&decoded),
        mode,
    })
}

/// Whether more bytes could make an instruction of these. Invalid opcodes, too, make the decoder ask for a ModRM byte.
fn could_go_on(bytes: &[u8], mode: Mode) -> bool {
    [0x00, 0xc0].iter().any(|&filler| {
        let mut padded = [filler; MAX_LENGTH];
        padded[..bytes.len()].copy_from_slice(bytes);
        let mut decoder = Decoder::with_ip(mode.bits(), &padded, 0, DecoderOptions::NONE);
        !decoder.decode().is_invalid()
    })
}

#[cfg(test)]
mod tests;
