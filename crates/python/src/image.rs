//! `Space` and `Code`: code bytes over time, for Python.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rtit_flow::CodeCachePool;
use rtit_image::{Bytes, Pager, View};

use crate::missing::{Asked, Missing};
use crate::raising::Raising;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Code>()?;
    module.add_class::<Space>()
}

/// Bytes of code that many spaces share without copying them.
#[pyclass(frozen, module = "rtit._core")]
pub struct Code {
    bytes: Bytes,
}

#[pymethods]
impl Code {
    #[new]
    fn new(data: &[u8]) -> Code {
        Code { bytes: data.into() }
    }

    /// `size` bytes from `offset` on, shared; ValueError if there are fewer.
    fn slice(&self, offset: usize, size: usize) -> PyResult<Code> {
        let bytes = offset
            .checked_add(size)
            .and_then(|end| self.bytes.slice(offset..end));
        let length = self.bytes.len();
        let error = || PyValueError::new_err(format!("{size} bytes from {offset} of {length}"));
        Ok(Code {
            bytes: bytes.ok_or_else(error)?,
        })
    }

    fn __len__(&self) -> usize {
        self.bytes.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.bytes.as_slice())
    }
}

/// Code bytes of one process over time. Times are TSC values, addresses and sizes are in bytes.
#[pyclass(frozen, module = "rtit._core")]
pub struct Space {
    state: Mutex<State>,
    /// Its children have the same.
    learned: CodeCachePool,
}

struct State {
    space: rtit_image::Space,
    /// The view that the last `read` left, and its time.
    view: Option<(u64, View)>,
    missing: Option<Arc<Missing>>,
}

impl Space {
    /// The space as it is now; a cheap clone that later changes do not reach.
    pub fn inner(&self) -> rtit_image::Space {
        self.lock().space.clone()
    }

    /// Who is asked for pages.
    pub fn missing(&self) -> Option<Arc<Missing>> {
        self.lock().missing.clone()
    }

    fn from(space: rtit_image::Space, missing: Option<Arc<Missing>>) -> Space {
        Space {
            state: Mutex::new(State {
                space,
                view: None,
                missing,
            }),
            learned: CodeCachePool::default(),
        }
    }

    /// What streams leave of the code for those that come after them.
    pub fn learned(&self) -> CodeCachePool {
        self.learned.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut rtit_image::Space)) {
        let mut state = self.lock();
        state.view = None;
        change(&mut state.space);
    }
}

#[derive(FromPyObject)]
enum CodeOrBytes<'py> {
    #[pyo3(transparent)]
    Code(PyRef<'py, Code>),
    #[pyo3(transparent, annotation = "bytes")]
    Bytes(Bound<'py, PyBytes>),
}

#[pymethods]
impl Space {
    #[new]
    fn new() -> Space {
        Space::from(rtit_image::Space::new(), None)
    }

    /// `code` is mapped at `address` from `time` on and replaces what it overlaps.
    fn map(&self, time: u64, address: u64, code: CodeOrBytes<'_>) {
        self.change(|space| {
            let bytes = match code {
                CodeOrBytes::Code(code) => code.bytes.clone(),
                CodeOrBytes::Bytes(data) => data.as_bytes().into(),
            };
            space.map(time, address, bytes);
        })
    }

    /// Code was written: `data` replaces the bytes at `address` from `time` on.
    fn poke(&self, time: u64, address: u64, data: &[u8]) {
        self.change(|space| space.poke(time, address, data));
    }

    /// From `time` on the `size` bytes from `address` on are not known.
    fn unmap(&self, time: u64, address: u64, size: u64) {
        self.change(|space| space.unmap(time, address, size));
    }

    /// All mappings are gone at `time` (exec).
    fn clear(&self, time: u64) {
        self.change(|space| space.clear(time));
    }

    /// The space of a process forked from this one at `time`.
    fn fork(&self, time: u64) -> Space {
        let state = self.lock();
        let child = Space::from(state.space.fork(time), state.missing.clone());
        Space {
            learned: self.learned.clone(),
            ..child
        }
    }

    /// From `time` on this is a copy of `parent` as of `time` (a process number used again).
    fn adopt(&self, time: u64, parent: &Space) {
        let parent = parent.inner();
        self.change(|space| space.adopt(time, &parent));
    }

    /// Where nothing is mapped `callable` is asked: it is given the address of a page of 4096 bytes and gives what is
    /// there, up to 4096 bytes, or None. Answers are kept, also that nothing is there. None: nobody is asked.
    fn set_missing(&self, callable: Option<Py<PyAny>>) {
        let missing = callable.map(Missing::new);
        let pager = missing
            .clone()
            .map(|missing| Arc::new(Pager::new(Box::new(Asked(missing)))));
        let mut state = self.lock();
        state.view = None;
        state.missing = missing;
        state.space.set_pager(pager);
    }

    /// The answers about pages that hold one of `size` bytes from `address` on are forgotten.
    fn forget(&self, address: u64, size: u64) {
        if let Some(pager) = self.lock().space.pager() {
            pager.forget(address, size);
        }
    }

    /// The bytes from `address` on as of `time`: at most `size`, fewer up to the first that is
    /// unknown. Raises what the callable raises that is asked for pages.
    fn read<'py>(
        &self,
        py: Python<'py>,
        time: u64,
        address: u64,
        size: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        // Without the lock: who is asked for a page may use this space.
        let (view, missing) = {
            let mut state = self.lock();
            let view = match state.view.take() {
                Some((now, view)) if now <= time => view,
                _ => state.space.view(),
            };
            (view, state.missing.clone())
        };
        let mut view = view;
        view.advance(time);
        let mut out = Vec::new();
        while let Some(at) = address.checked_add(out.len() as u64) {
            let left = size - out.len();
            if left == 0 {
                break;
            }
            if let Some(bytes) = view.section_bytes(at) {
                out.extend_from_slice(&bytes[..left.min(bytes.len())]);
                continue;
            }
            let mut part = [0; 1 << 12];
            let part = part.get_mut(..left.min(1 << 12)).unwrap_or(&mut []);
            let count = view.read_into(at, part);
            if count == 0 && !view.request_page(at) {
                break;
            }
            out.extend_from_slice(&part[..count.min(part.len())]);
        }
        if let Some(missing) = missing {
            missing.check(py)?;
        }
        self.lock().view = Some((time, view));
        Ok(PyBytes::new(py, &out))
    }

    /// The number of different contents that a decoder can meet.
    #[getter]
    fn epochs(&self) -> usize {
        self.lock().space.epochs()
    }

    /// The number of changes recorded.
    #[getter]
    fn changes(&self) -> usize {
        self.lock().space.changes()
    }
}
