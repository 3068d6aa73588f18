//! `unlz4`: the legacy frame of LZ4, in which Linux kernels are compressed: a magic number, then blocks after their
//! sizes.

use lz4_flex::block::decompress;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
/// Bytes in a block at most, once it is decompressed.
const BLOCK_SIZE: usize = 8 << 20;

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
        let Some((block, after)) = after.split_at_checked(size) else {
            break;
        };
        let room = limit - output.len();
        output.extend(decompress(block, room.min(BLOCK_SIZE)).ok()?);
        rest = after;
    }
    Some(output)
}
