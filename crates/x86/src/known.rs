//! Instructions that iced-x86 decodes.

use iced_x86::{Decoder, DecoderError, DecoderOptions};

use crate::class::{self, Class};
use crate::instruction::{Instruction, Mode, Undecodable, MAX_LENGTH};

/// The instruction at `ip`, without REX2 prefix.
pub(crate) fn decode(bytes: &[u8], ip: u64, mode: Mode) -> Result<Instruction, Undecodable> {
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
        pops_flags: class::pops_flags(&decoded),
        narrow: mode == Mode::Bits32 && class::pops_16_bits(&decoded),
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
