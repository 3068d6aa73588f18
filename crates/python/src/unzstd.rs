//! Zstandard streams that nobody has ended, as perf writes them: its records hold a piece each.

use std::io::{self, Read};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator};

use ruzstd::decoding::StreamingDecoder;

use crate::as_bytes::take_in;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(unzstd, module)?)
}

/// Bytes that are handed on at once.
const PART: usize = 1 << 20;
/// An empty block of no type, the last of its frame (RFC 8878, section 3.1.1.2).
const LAST_BLOCK: [u8; 3] = [1, 0, 0];

/// Decompresses the frames that `pieces`, an iterable of bytes-like, are together, and hands the bytes to `write` in
/// parts. What follows the last whole block of a stream that breaks off is left out. Returns how many bytes were handed
/// on. ValueError for what is no such stream, and for more than `limit` bytes.
#[pyfunction]
fn unzstd(pieces: &Bound<'_, PyAny>, write: &Bound<'_, PyAny>, limit: u64) -> PyResult<u64> {
    let py = pieces.py();
    let mut blocks = Blocks {
        pieces: pieces.try_iter()?,
        failed: None,
        given: Vec::new(),
        taken: 0,
        ended: false,
    };
    let mut whole = 0;
    while blocks.has_frame()? {
        let mut frame = Frame {
            blocks: &mut blocks,
            ready: Vec::new(),
            at: 0,
            state: Part::Header,
        };
        let refused = |error: String| PyValueError::new_err(format!("no Zstandard: {error}"));
        let made = StreamingDecoder::new(&mut frame).map_err(|error| refused(error.to_string()));
        let mut decoder = match made {
            Ok(decoder) => decoder,
            Err(error) => return Err(blocks.failed.take().unwrap_or(error)),
        };
        let mut part = vec![0; PART];
        loop {
            let size = match decoder.read(&mut part) {
                Ok(0) => break,
                Ok(size) => size,
                Err(error) => {
                    drop(decoder);
                    return Err(blocks
                        .failed
                        .take()
                        .unwrap_or_else(|| refused(error.to_string())));
                }
            };
            whole += size as u64;
            if whole > limit {
                return Err(PyValueError::new_err(format!(
                    "more than {limit} bytes come out of it"
                )));
            }
            let part = PyBytes::new(py, part.get(..size).unwrap_or(&[]));
            write.call1((part,))?;
        }
    }
    match blocks.failed.take() {
        Some(error) => Err(error),
        None => Ok(whole),
    }
}

/// The compressed bytes, as far as they have been asked for.
struct Blocks<'py> {
    pieces: Bound<'py, PyIterator>,
    failed: Option<PyErr>,
    given: Vec<u8>,
    /// Of these so many have been taken: blocks may be short.
    taken: usize,
    ended: bool,
}

impl Blocks<'_> {
    /// Whether `size` bytes wait, once more were taken if need be.
    fn has(&mut self, size: usize) -> bool {
        while self.waiting().len() < size && !self.ended {
            match self.more() {
                Ok(more) => self.ended = !more,
                Err(error) => {
                    self.failed = Some(error);
                    self.ended = true;
                }
            }
        }
        self.waiting().len() >= size
    }

    fn waiting(&self) -> &[u8] {
        self.given.get(self.taken..).unwrap_or(&[])
    }

    fn more(&mut self) -> PyResult<bool> {
        let Some(piece) = self.pieces.next() else {
            return Ok(false);
        };
        let piece = piece?;
        let buffer = PyBuffer::<u8>::get(&piece)?;
        self.given.drain(..std::mem::take(&mut self.taken));
        take_in(piece.py(), &buffer, &mut self.given)?;
        Ok(true)
    }

    /// Zeros between frames are the padding of records.
    fn has_frame(&mut self) -> PyResult<bool> {
        while self.has(1) && self.waiting().first() == Some(&0) {
            self.taken += self.waiting().iter().take_while(|byte| **byte == 0).count();
        }
        match self.failed.take() {
            Some(error) => Err(error),
            None => Ok(self.has(1)),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Header,
    /// A block, and whether a checksum of four bytes follows the last.
    Block(bool),
    End,
}

/// One frame: whole blocks alone, and a last one in any case.
struct Frame<'a, 'py> {
    blocks: &'a mut Blocks<'py>,
    ready: Vec<u8>,
    at: usize,
    state: Part,
}

impl Frame<'_, '_> {
    fn next(&mut self) {
        self.ready.clear();
        self.at = 0;
        match self.state {
            Part::Header => self.header(),
            Part::Block(checksum) => self.block(checksum),
            Part::End => {}
        }
    }

    fn take(&mut self, size: usize) {
        let waiting = self.blocks.waiting();
        let taken = waiting.get(..size).unwrap_or(waiting);
        self.ready.extend_from_slice(taken);
        self.blocks.taken += taken.len();
    }

    /// Magic number, descriptor and what it says there is (section 3.1.1.1).
    fn header(&mut self) {
        self.state = Part::End;
        if !self.blocks.has(5) {
            self.take(5);
            return;
        }
        let descriptor = self.blocks.waiting().get(4).copied().unwrap_or(0);
        let single = descriptor >> 5 & 1;
        let window = usize::from(single == 0);
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let content = [usize::from(single), 2, 4, 8][usize::from(descriptor >> 6)];
        let size = 5 + window + dictionary + content;
        if self.blocks.has(size) {
            self.state = Part::Block(descriptor >> 2 & 1 != 0);
        }
        self.take(size);
    }

    fn block(&mut self, checksum: bool) {
        let whole = self.blocks.has(3) && {
            let size = self.block_size();
            self.blocks.has(size)
        };
        if !whole {
            self.blocks.taken = self.blocks.given.len();
            self.ready.extend_from_slice(&LAST_BLOCK);
            self.state = Part::End;
            return;
        }
        let last = self
            .blocks
            .waiting()
            .first()
            .is_some_and(|byte| byte & 1 != 0);
        let mut size = self.block_size();
        if last {
            self.state = Part::End;
            size += if checksum { 4 } else { 0 };
            self.blocks.has(size);
        }
        self.take(size);
    }

    /// Bytes of the block that comes next, with its header (section 3.1.1.2).
    fn block_size(&self) -> usize {
        let byte = |at: usize| self.blocks.waiting().get(at).copied().unwrap_or(0);
        let size = usize::from(byte(0)) | usize::from(byte(1)) << 8 | usize::from(byte(2)) << 16;
        const REPEATED: usize = 1;
        3 + if size >> 1 & 3 == REPEATED {
            1
        } else {
            size >> 3
        }
    }
}

impl Read for Frame<'_, '_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.ready.len() {
            self.next();
        }
        let rest = self.ready.get(self.at..).unwrap_or(&[]);
        let size = rest.len().min(out.len());
        for (to, from) in out.iter_mut().zip(rest) {
            *to = *from;
        }
        self.at += size;
        Ok(size)
    }
}
