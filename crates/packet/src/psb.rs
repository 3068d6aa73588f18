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

/// Whether a PSB begins within the `length` bytes of a packet at the beginning of `data`: then these are no packet,
/// whatever they look like. A run of 02H 82H that goes on behind the packet with a whole PSB is the packet's own bytes
/// and that PSB, unless it is long enough for another.
pub fn psb_within(data: &[u8], length: usize) -> bool {
    let [first, second] = [PSB[0], PSB[1]];
    let after = data.get(length..).unwrap_or(&[]);
    match after {
        [one, two, ..] if [*one, *two] == [first, second] => {}
        [one, two, ..] if [*one, *two] == [second, first] => {}
        _ => return false,
    }
    let seen = data.len().min(length + PSB.len());
    let Some(at) = data.get(1..seen).and_then(|seen| memmem::find(seen, &PSB)) else {
        return false;
    };
    let run = data.get(1 + at + PSB.len()..).unwrap_or(&[]);
    let more = run
        .chunks_exact(2)
        .take(PSB.len() / 2)
        .take_while(|pair| *pair == [first, second])
        .count();
    match more {
        0..8 => 1 + at + 2 * more < length,
        _ => 1 + at < length,
    }
}
