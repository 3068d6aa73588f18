//! Pages that Python is asked for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use rtit_image::{Bytes, PageError, PageSource, PAGE};

use crate::raising::Raising;

/// A callable that is given the address of a page and gives its bytes, or None. What it raises is kept for whoever
/// decodes; until that is taken nothing is asked.
pub struct Missing {
    callable: Py<PyAny>,
    raised: Mutex<Option<PyErr>>,
}

impl Missing {
    pub fn new(callable: Py<PyAny>) -> Arc<Missing> {
        Arc::new(Missing {
            callable,
            raised: Mutex::new(None),
        })
    }

    fn raised(&self) -> MutexGuard<'_, Option<PyErr>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, py: Python<'_>, page: u64) -> PyResult<Option<Bytes>> {
        let answer = self.callable.bind(py).call1((page,))?;
        if answer.is_none() {
            return Ok(None);
        }
        let buffer = PyBuffer::<u8>::get(&answer).map_err(|_| {
            PyTypeError::new_err("what is asked for a page gives bytes or None, nothing else")
        })?;
        let count = buffer.item_count();
        if count as u64 > PAGE {
            return Err(PyValueError::new_err(format!(
                "the page at {page:#x} was given {count} bytes, more than {PAGE}"
            )));
        }
        Ok(Some(Bytes::from(buffer.to_vec(py)?)))
    }
}

impl Raising for Missing {
    fn check(&self, _: Python<'_>) -> PyResult<()> {
        self.raised().take().map_or(Ok(()), Err)
    }
}

/// The same, as the image knows it.
pub struct Asked(pub Arc<Missing>);

impl PageSource for Asked {
    fn read_page(&self, page: u64) -> Result<Option<Bytes>, PageError> {
        Python::attach(|py| {
            if self.0.raised().is_some() {
                return Err(PageError);
            }
            self.0.call(py, page).map_err(|error| {
                *self.0.raised() = Some(error);
                PageError
            })
        })
    }
}
