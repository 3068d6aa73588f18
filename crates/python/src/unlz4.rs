//! `unlz4`: the legacy frame of LZ4, in which Linux kernels are compressed: a magic number, then blocks after their
//! sizes.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
/// A match has at least this length.
const SHORTEST_MATCH: usize = 4;

/// Decompresses a frame. Bytes after the last whole block are ignored: a kernel has its size there.
#[pyfunction]
pub fn unlz4<'py>(py: Python<'py>, data: &[u8], limit: usize) -> PyResult<Bound<'py, PyBytes>> {
    let found = py.detach(|| decompress_frame(data, limit));
    found
        .map(|bytes| PyBytes::new(py, &bytes))
        .ok_or_else(|| PyValueError::new_err(format!("no LZ4 frame of at most {limit} bytes")))
}

fn decompress_frame(data: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut rest = data.strip_prefix(&MAGIC)?;
    let mut output = Vec::new();
    while let Some((size, after)) = rest.split_first_chunk() {
        let size = u32::from_le_bytes(*size) as usize;
        let Some(block) = after.get(..size) else {
            break;
        };
        decompress_block(block, &mut output, limit)?;
        rest = &after[size..];
    }
    Some(output)
}

/// Appends the contents of a block; None if it is invalid or too long.
fn decompress_block(mut block: &[u8], output: &mut Vec<u8>, limit: usize) -> Option<()> {
    let start = output.len();
    while let Some((&token, rest)) = block.split_first() {
        block = rest;
        let literals = read_length(token >> 4, &mut block)?;
        output.extend_from_slice(block.get(..literals)?);
        block = &block[literals..];
        let Some((distance, rest)) = block.split_first_chunk() else {
            break;
        };
        block = rest;
        let distance = usize::from(u16::from_le_bytes(*distance));
        let length = read_length(token & 15, &mut block)? + SHORTEST_MATCH;
        let from = output.len().checked_sub(distance)?;
        if distance == 0 || from < start || length > limit || output.len() + length > limit {
            return None;
        }
        for at in from..from + length {
            output.push(output[at]);
        }
    }
    Some(())
}

/// Returns a length of 4 bits that further bytes may extend.
fn read_length(start: u8, block: &mut &[u8]) -> Option<usize> {
    let mut length = usize::from(start);
    let mut byte = if start == 15 { 255 } else { 0 };
    while byte == 255 {
        let (&next, rest) = block.split_first()?;
        (byte, *block) = (next, rest);
        length += usize::from(byte);
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_and_long_lengths_are_expanded() {
        // "ab", then 15 + 4 + 1 bytes from 2 back, then "c"; the size of the frame follows
        let block = [0x2f, b'a', b'b', 2, 0, 1, 0x10, b'c'];
        let mut frame = MAGIC.to_vec();
        frame.extend((block.len() as u32).to_le_bytes());
        frame.extend(block);
        frame.extend(23u32.to_le_bytes());
        let expected = [b"ab".repeat(11), b"c".to_vec()].concat();
        assert_eq!(decompress_frame(&frame, 100), Some(expected));
        assert_eq!(decompress_frame(&frame, 10), None);
        assert_eq!(decompress_frame(&frame[1..], 100), None);
    }
}
