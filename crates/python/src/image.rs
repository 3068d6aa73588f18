//! `Space` and `Code`: code bytes over time.

use std::sync::{Arc, Mutex};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rtit_flow::CodeCachePool;
use rtit_image::{PageError, PageSource, Pager, SharedBytes, SpaceView, PAGE};

use crate::errors::{lock_despite_poison, PendingError};

#[pyclass(frozen, module = "rtit._core")]
pub struct Code {
    bytes: SharedBytes,
}

#[pymethods]
impl Code {
    #[new]
    fn new(data: &[u8]) -> Code {
        Code { bytes: data.into() }
    }

    fn slice(&self, offset: usize, size: usize) -> PyResult<Code> {
        let bytes = offset
            .checked_add(size)
            .and_then(|end| self.bytes.slice_of_range(offset..end));
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

#[pyclass(frozen, module = "rtit._core")]
pub struct Space {
    state: Mutex<SpaceState>,
    /// What finished decoders know of the code; shared with forks.
    code_cache_pool: CodeCachePool,
}

struct SpaceState {
    space: rtit_image::Space,
    /// The view of the last `read`, and its time.
    view: Option<(u64, SpaceView)>,
    page_callback: Option<Arc<PageCallback>>,
}

impl Space {
    /// The space as it is now; a cheap clone that later changes do not reach.
    pub fn image_space(&self) -> rtit_image::Space {
        lock_despite_poison(&self.state).space.clone()
    }

    pub fn page_callback(&self) -> Option<Arc<PageCallback>> {
        lock_despite_poison(&self.state).page_callback.clone()
    }

    pub fn code_cache_pool(&self) -> CodeCachePool {
        self.code_cache_pool.clone()
    }

    fn change_space(&self, change: impl FnOnce(&mut rtit_image::Space)) {
        let mut state = lock_despite_poison(&self.state);
        state.view = None;
        change(&mut state.space);
    }
}

/// A Python callable that returns the bytes of the page at an address, or None.
///
/// It is called without the GIL. After an error pages are unknown until the error was raised.
pub struct PageCallback {
    callable: Py<PyAny>,
    error: Mutex<Option<PyErr>>,
}

impl PageCallback {
    fn call_page_function(&self, py: Python<'_>, page: u64) -> PyResult<Option<SharedBytes>> {
        let answer = self.callable.bind(py).call1((page,))?;
        if answer.is_none() {
            return Ok(None);
        }
        let buffer = PyBuffer::<u8>::get(&answer).map_err(|_| {
            PyTypeError::new_err("the page callback must return bytes or None, nothing else")
        })?;
        let count = buffer.item_count();
        if count as u64 > PAGE {
            return Err(PyValueError::new_err(format!(
                "the page callback returned {count} bytes for {page:#x}, more than {PAGE}"
            )));
        }
        Ok(Some(SharedBytes::from(buffer.to_vec(py)?)))
    }
}

impl PendingError for PageCallback {
    fn check_pending_error(&self, _: Python<'_>) -> PyResult<()> {
        lock_despite_poison(&self.error).take().map_or(Ok(()), Err)
    }
}

struct PageFetcher(Arc<PageCallback>);

impl PageSource for PageFetcher {
    fn read_page(&self, page: u64) -> Result<Option<SharedBytes>, PageError> {
        let callback = &self.0;
        Python::attach(|py| {
            if lock_despite_poison(&callback.error).is_some() {
                return Err(PageError);
            }
            callback.call_page_function(py, page).map_err(|error| {
                *lock_despite_poison(&callback.error) = Some(error);
                PageError
            })
        })
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
        Space {
            state: Mutex::new(SpaceState {
                space: rtit_image::Space::new(),
                view: None,
                page_callback: None,
            }),
            code_cache_pool: CodeCachePool::default(),
        }
    }

    fn map(&self, time: u64, address: u64, code: CodeOrBytes<'_>) {
        self.change_space(|space| {
            let bytes = match code {
                CodeOrBytes::Code(code) => code.bytes.clone(),
                CodeOrBytes::Bytes(data) => data.as_bytes().into(),
            };
            space.map_bytes(time, address, bytes);
        })
    }

    fn poke(&self, time: u64, address: u64, data: &[u8]) {
        self.change_space(|space| space.overwrite_bytes(time, address, data));
    }

    fn unmap(&self, time: u64, address: u64, size: u64) {
        self.change_space(|space| space.unmap_range(time, address, size));
    }

    fn clear(&self, time: u64) {
        self.change_space(|space| space.clear_for_exec(time));
    }

    fn fork(&self, time: u64) -> Space {
        let state = lock_despite_poison(&self.state);
        Space {
            state: Mutex::new(SpaceState {
                space: state.space.fork_at_time(time),
                view: None,
                page_callback: state.page_callback.clone(),
            }),
            code_cache_pool: self.code_cache_pool(),
        }
    }

    fn adopt(&self, time: u64, parent: &Space) {
        let parent = parent.image_space();
        self.change_space(|space| space.replace_by_copy_of_parent(time, &parent));
    }

    fn has_equal_code(&self, other: &Space) -> bool {
        // Cloned one after the other, as `other` may be this space.
        let space = self.image_space();
        space.has_equal_code(&other.image_space())
    }

    fn set_page_callback(&self, callable: Option<Py<PyAny>>) {
        let callback = callable.map(|callable| {
            Arc::new(PageCallback {
                callable,
                error: Mutex::new(None),
            })
        });
        let fetcher = callback.clone().map(PageFetcher);
        let pager = fetcher.map(|fetcher| Arc::new(Pager::new(Box::new(fetcher))));
        let mut state = lock_despite_poison(&self.state);
        state.view = None;
        state.page_callback = callback;
        state.space.set_pager(pager);
    }

    fn forget(&self, address: u64, size: u64) {
        if let Some(pager) = lock_despite_poison(&self.state).space.pager() {
            pager.forget_pages(address, size);
        }
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        time: u64,
        address: u64,
        size: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        // The lock is released, as the page callback may use this space.
        let (mut view, callback) = {
            let mut state = lock_despite_poison(&self.state);
            let view = match state.view.take() {
                Some((now, view)) if now <= time => view,
                _ => state.space.view_at_start(),
            };
            (view, state.page_callback.clone())
        };
        view.advance_to_time(time);
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
            let count = view.read_bytes_into(at, part);
            if count == 0 && !view.request_page(at) {
                break;
            }
            out.extend_from_slice(&part[..count.min(part.len())]);
        }
        if let Some(callback) = callback {
            callback.check_pending_error(py)?;
        }
        lock_despite_poison(&self.state).view = Some((time, view));
        Ok(PyBytes::new(py, &out))
    }

    #[getter]
    fn changes(&self) -> usize {
        lock_despite_poison(&self.state).space.change_count()
    }
}
