//! Decodes instructions with iced-x86, and formats them in Intel's syntax.

use iced_x86::{Decoder, DecoderError, DecoderOptions, Formatter, IntelFormatter};

use crate::class::{self, InstructionClass};
use crate::instruction::{CodeMode, Instruction, UndecodableReason, MAX_LENGTH};

/// Decodes the instruction at `ip`, without REX2 prefix.
pub(crate) fn decode(
    bytes: &[u8],
    ip: u64,
    mode: CodeMode,
) -> Result<Instruction, UndecodableReason> {
    let bytes = &bytes[..bytes.len().min(MAX_LENGTH)];
    let mut decoder = Decoder::with_ip(mode.pointer_bits(), bytes, ip, DecoderOptions::NONE);
    let decoded = decoder.decode();
    if decoded.is_invalid() {
        let ended = decoder.last_error() == DecoderError::NoMoreBytes && bytes.len() < MAX_LENGTH;
        return Err(
            if ended && could_more_bytes_complete_instruction(bytes, mode) {
                UndecodableReason::Truncated
            } else {
                UndecodableReason::Invalid
            },
        );
    }
    let class = InstructionClass::from_iced(&decoded);
    Ok(Instruction {
        ip,
        length: decoded.len() as u8,
        class,
        target: class::direct_target(&decoded, class),
        repeats: class::is_repeated_string_instruction(&decoded),
        shadows: class::inhibits_interrupts_after_it(&decoded),
        pushes_flags: class::pushes_flags(&decoded),
        pops_flags: class::pops_flags(&decoded),
        narrow: mode == CodeMode::Bits32 && class::pops_16_bit_flags(&decoded),
        mode,
    })
}

/// Returns whether more bytes could complete an instruction. Invalid opcodes make the decoder ask for a ModRM byte as
/// well.
fn could_more_bytes_complete_instruction(bytes: &[u8], mode: CodeMode) -> bool {
    [0x00, 0xc0].iter().any(|&filler| {
        let mut padded = [filler; MAX_LENGTH];
        padded[..bytes.len()].copy_from_slice(bytes);
        let mut decoder = Decoder::with_ip(mode.pointer_bits(), &padded, 0, DecoderOptions::NONE);
        !decoder.decode().is_invalid()
    })
}

/// Returns the instruction at `ip` as text, such as `mov rax,[rbx+8]`; `(bad)` for invalid bytes.
pub fn format_instruction(bytes: &[u8], ip: u64, mode: CodeMode) -> String {
    let bytes = &bytes[..bytes.len().min(MAX_LENGTH)];
    let mut decoder = Decoder::with_ip(mode.pointer_bits(), bytes, ip, DecoderOptions::NONE);
    let decoded = decoder.decode();
    let mut text = String::new();
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_small_hex_numbers_in_decimal(true);
    options.set_branch_leading_zeros(false);
    options.set_rip_relative_addresses(false);
    formatter.format(&decoded, &mut text);
    text
}
