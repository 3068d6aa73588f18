//! Finding the next PSB (section 33.3.7).

use memchr::memmem;

/// The bytes of a PSB.
pub const PSB: [u8; 16] = [
    0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82,
];

/// Offset of the first PSB that begins at or after `from`; `None` if there is none (or `from` is past the end).
///
/// The payload of a packet before a PSB may look like its beginning, so that a run of 02H 82H is longer than 16 bytes:
/// the PSB is the end of the run.
pub fn find_psb(data: &[u8], from: usize) -> Option<usize> {
    let start = from + memmem::find(data.get(from..)?, &PSB)?;
    let after = data.get(start + PSB.len()..)?;
    let longer = after
        .chunks_exact(2)
        .take_while(|pair| *pair == &PSB[..2])
        .count();
    Some(start + 2 * longer)
}
