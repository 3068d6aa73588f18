//! `unzstd`: Zstandard streams that may break off, as perf writes them: each of its records holds a part of a stream.

use std::io::{self, BufRead, Read};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::columns::append_buffer;

/// Bytes that are decoded and written at once, about.
const PART_BYTES: usize = 1 << 20;
/// An empty last block (RFC 8878, section 3.1.1.2), and the checksum that some frames have after it.
const END_OF_FRAME: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

/// Decompresses the frames in `chunks`, calls `write` with each part, and returns the number of bytes.
#[pyfunction]
pub fn unzstd(chunks: &Bound<'_, PyAny>, write: &Bound<'_, PyAny>, limit: u64) -> PyResult<u64> {
    let py = chunks.py();
    let mut source = ChunkReader {
        chunks: chunks.try_iter()?,
        chunk: Vec::new(),
        position: 0,
        is_exhausted: false,
        error: None,
    };
    let mut decoder = FrameDecoder::new();
    let mut part = vec![0; PART_BYTES];
    let mut written = 0;
    while source.find_next_frame() {
        if let Err(error) = decoder.reset(&mut source) {
            return Err(source.decompression_error(error));
        }
        while !decoder.is_finished() {
            let strategy = BlockDecodingStrategy::UptoBytes(PART_BYTES);
            if let Err(error) = decoder.decode_blocks(&mut source, strategy) {
                let is_cut = source.is_exhausted && source.error.is_none();
                // The blocks before the one that is cut off are whole, and end here.
                if !is_cut {
                    return Err(source.decompression_error(error));
                }
                let end = decoder.decode_blocks(&END_OF_FRAME[..], BlockDecodingStrategy::All);
                end.map_err(|error| source.decompression_error(error))?;
            }
            while decoder.can_collect() > 0 {
                let size = decoder.read(&mut part)?;
                written += size as u64;
                if written > limit {
                    let message = format!("the data decompresses to more than {limit} bytes");
                    return Err(PyValueError::new_err(message));
                }
                write.call1((PyBytes::new(py, part.get(..size).unwrap_or(&[])),))?;
            }
        }
    }
    source.error.take().map_or(Ok(written), Err)
}

/// Bytes from an iterator of buffers.
struct ChunkReader<'py> {
    chunks: Bound<'py, PyIterator>,
    chunk: Vec<u8>,
    position: usize,
    is_exhausted: bool,
    /// Raised by the iterator; no more bytes are read then.
    error: Option<PyErr>,
}

impl ChunkReader<'_> {
    /// Skips zeros between frames, which pad records; whether anything follows.
    fn find_next_frame(&mut self) -> bool {
        while let Ok([0, ..]) = self.fill_buf() {
            self.consume(1);
        }
        self.position < self.chunk.len()
    }

    fn next_chunk(&mut self) -> PyResult<bool> {
        let Some(chunk) = self.chunks.next() else {
            return Ok(false);
        };
        let chunk = chunk?;
        self.chunk.clear();
        self.position = 0;
        append_buffer(chunk.py(), &PyBuffer::get(&chunk)?, &mut self.chunk)?;
        Ok(true)
    }

    /// The error of the iterator, else ValueError for an error of the decoder.
    fn decompression_error(&mut self, error: impl std::fmt::Display) -> PyErr {
        let invalid = || PyValueError::new_err(format!("the data is not Zstandard: {error}"));
        self.error.take().unwrap_or_else(invalid)
    }
}

impl BufRead for ChunkReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.position == self.chunk.len() && !self.is_exhausted {
            self.is_exhausted = match self.next_chunk() {
                Ok(has_more) => !has_more,
                Err(error) => {
                    self.error = Some(error);
                    true
                }
            };
        }
        Ok(self.chunk.get(self.position..).unwrap_or(&[]))
    }

    fn consume(&mut self, size: usize) {
        self.position += size;
    }
}

impl Read for ChunkReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let size = self.fill_buf()?.read(out)?;
        self.consume(size);
        Ok(size)
    }
}
