//! Instructions as text, in Intel's syntax.

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

use crate::instruction::{Mode, MAX_LENGTH};

/// The instruction at `ip` as text, such as `mov rax,[rbx+8]`; `(bad)` for bytes that are none.
pub fn format(bytes: &[u8], ip: u64, mode: Mode) -> String {
    let bytes = &bytes[..bytes.len().min(MAX_LENGTH)];
    let mut decoder = Decoder::with_ip(mode.bits(), bytes, ip, DecoderOptions::NONE);
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
