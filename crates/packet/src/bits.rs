//! Bits of a packet.

use crate::table::Field;

/// The low `size` (at most 8) bytes from `at` on; bytes past the end read as 0.
#[inline]
pub(crate) fn word(rest: &[u8], at: usize, size: usize) -> u64 {
    let mut bytes = [0; 8];
    if let Some(eight) = rest.get(at..at + 8) {
        bytes.copy_from_slice(eight);
    } else {
        let some = rest.get(at..).unwrap_or_default();
        bytes
            .iter_mut()
            .zip(some)
            .for_each(|(to, from)| *to = *from);
    }
    u64::from_le_bytes(bytes) & ones(8 * size as u32)
}

/// The value of a field; the packet is in `rest` in whole.
#[inline]
pub(crate) fn get(rest: &[u8], field: Field) -> u64 {
    let size = (field.bit + field.width).div_ceil(8) as usize;
    (word(rest, field.byte, size) >> field.bit & ones(field.width)) << field.shift
}

#[inline]
const fn ones(width: u32) -> u64 {
    match u64::MAX.checked_shr(64 - width) {
        Some(mask) => mask,
        None => 0,
    }
}
