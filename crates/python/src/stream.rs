//! The bytes of a stream: all of them, or a window that moves over pieces that Python gives one at a time.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyIterator;
use rtit_flow::{StreamWindow, WindowSource};

use crate::as_bytes::take_in;

/// `Pieces::enough` for one thread.
const ENOUGH: usize = 1 << 16;

pub enum Stream {
    /// Kept alive, not copied.
    Shared(PyBackedBytes),
    Copied(Vec<u8>),
    Pieces(Pieces),
}

pub struct Pieces {
    /// Bytes that a window holds at least, unless the stream ends.
    enough: usize,
    /// None: there are no more.
    rest: Option<Py<PyIterator>>,
    /// Why the next piece could not be had: nobody may take it for the end of the stream.
    failed: Option<PyErr>,
    bytes: Vec<u8>,
    base: usize,
}

impl WindowSource for Stream {
    fn window(&self) -> StreamWindow<'_> {
        match self {
            Stream::Shared(bytes) => StreamWindow::whole(bytes),
            Stream::Copied(bytes) => StreamWindow::whole(bytes),
            Stream::Pieces(pieces) => StreamWindow {
                bytes: &pieces.bytes,
                base: pieces.base,
                last: pieces.rest.is_none(),
            },
        }
    }
}

impl Stream {
    /// Of bytes, of anything that has a buffer of bytes, or of an iterable of such.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Stream> {
        if let Ok(bytes) = object.extract::<PyBackedBytes>() {
            return Ok(Stream::Shared(bytes));
        }
        if let Ok(buffer) = PyBuffer::<u8>::get(object) {
            return Ok(Stream::Copied(buffer.to_vec(object.py())?));
        }
        let rest = object
            .try_iter()
            .map_err(|_| {
                PyTypeError::new_err("the stream is neither bytes-like nor an iterable of such")
            })?
            .unbind();
        let mut stream = Stream::Pieces(Pieces {
            enough: ENOUGH,
            rest: Some(rest),
            failed: None,
            bytes: Vec::new(),
            base: 0,
        });
        stream.go_on(object.py(), 0)?;
        Ok(stream)
    }

    /// From now on a window holds so many bytes from `position` on at least, unless the stream ends.
    pub fn hold(&mut self, py: Python<'_>, bytes: usize, position: usize) -> PyResult<()> {
        if let Stream::Pieces(pieces) = self {
            pieces.enough = bytes.max(ENOUGH);
            self.go_on(py, position)?;
        }
        Ok(())
    }

    /// Forgets what is before offset `position` and takes more. What a piece raises is raised again by every later
    /// call.
    pub fn go_on(&mut self, py: Python<'_>, position: usize) -> PyResult<()> {
        let Stream::Pieces(pieces) = self else {
            return Ok(());
        };
        if let Some(failed) = &pieces.failed {
            return Err(failed.clone_ref(py));
        }
        let past = (position - pieces.base).min(pieces.bytes.len());
        pieces.bytes.drain(..past);
        pieces.base += past;
        while pieces.bytes.len() < pieces.enough && pieces.rest.is_some() {
            // of pieces that are empty there may be any number
            py.check_signals()?;
            if let Err(error) = pieces.take(py) {
                pieces.failed = Some(error.clone_ref(py));
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Pieces {
    /// One piece more, or the end.
    fn take(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(rest) = &self.rest else {
            return Ok(());
        };
        let Some(piece) = rest.bind(py).clone().next() else {
            self.rest = None;
            return Ok(());
        };
        let buffer = PyBuffer::<u8>::get(&piece?)
            .map_err(|_| PyTypeError::new_err("a piece of the stream is not bytes-like"))?;
        take_in(py, &buffer, &mut self.bytes)
    }
}
