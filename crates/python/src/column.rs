//! `Column`: numbers that Python reads where Rust left them.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::mem::take;
use std::ptr;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyMemoryView};
use rtit_flow::recycle;

/// A column of numbers (u8, u32, u64, f64) with the buffer protocol: `numpy.asarray(column)` and `memoryview(column)`
/// see them without a copy, read-only. `len(column)` is how many there are, and it gives them one by one.
#[pyclass(frozen, module = "rtit._core")]
pub struct Column {
    numbers: Numbers,
    shape: [isize; 1],
    strides: [isize; 1],
}

enum Numbers {
    Octets(Vec<u8>),
    Halves(Vec<u32>),
    Words(Vec<u64>),
    Reals(Vec<f64>),
}

impl From<Vec<u8>> for Column {
    fn from(numbers: Vec<u8>) -> Column {
        Column::new(Numbers::Octets(numbers))
    }
}

impl From<Vec<u32>> for Column {
    fn from(numbers: Vec<u32>) -> Column {
        Column::new(Numbers::Halves(numbers))
    }
}

impl From<Vec<u64>> for Column {
    fn from(numbers: Vec<u64>) -> Column {
        Column::new(Numbers::Words(numbers))
    }
}

impl From<Vec<f64>> for Column {
    fn from(numbers: Vec<f64>) -> Column {
        Column::new(Numbers::Reals(numbers))
    }
}

impl<T> FromIterator<T> for Column
where
    Column: From<Vec<T>>,
{
    fn from_iter<I: IntoIterator<Item = T>>(numbers: I) -> Column {
        Vec::from_iter(numbers).into()
    }
}

impl Column {
    fn new(numbers: Numbers) -> Column {
        let (_, count, size, _) = numbers.layout();
        Column {
            numbers,
            shape: [count as isize],
            strides: [size as isize],
        }
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        match self {
            Numbers::Octets(numbers) => recycle(take(numbers)),
            Numbers::Halves(numbers) => recycle(take(numbers)),
            Numbers::Words(numbers) => recycle(take(numbers)),
            Numbers::Reals(_) => (),
        }
    }
}

impl Numbers {
    /// Where they are, how many, bytes of each, and the code of `struct` for them.
    fn layout(&self) -> (*const c_void, usize, usize, &'static CStr) {
        match self {
            Numbers::Octets(numbers) => (numbers.as_ptr().cast(), numbers.len(), 1, c"B"),
            Numbers::Halves(numbers) => (numbers.as_ptr().cast(), numbers.len(), 4, c"I"),
            Numbers::Words(numbers) => (numbers.as_ptr().cast(), numbers.len(), 8, c"Q"),
            Numbers::Reals(numbers) => (numbers.as_ptr().cast(), numbers.len(), 8, c"d"),
        }
    }
}

#[pymethods]
impl Column {
    fn __len__(&self) -> usize {
        self.numbers.layout().1
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyIterator>> {
        PyMemoryView::from(slf.as_any())?.try_iter()
    }

    /// # Safety
    /// Python calls it with a `view` to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("a column is read-only"));
        }
        let column = slf.get();
        let (place, count, size, format) = column.numbers.layout();
        let asked = |flag: c_int| flags & flag == flag;
        // SAFETY: `view` is Python's to fill. What it points to lives in the object, which `obj` keeps alive until the
        // view is released, and which is never changed: the class is frozen.
        unsafe {
            (*view).buf = place.cast_mut();
            (*view).len = (count * size) as isize;
            (*view).readonly = 1;
            (*view).itemsize = size as isize;
            (*view).format = match asked(ffi::PyBUF_FORMAT) {
                true => format.as_ptr().cast::<c_char>().cast_mut(),
                false => ptr::null_mut(),
            };
            (*view).ndim = 1;
            (*view).shape = match asked(ffi::PyBUF_ND) {
                true => column.shape.as_ptr().cast_mut(),
                false => ptr::null_mut(),
            };
            (*view).strides = match asked(ffi::PyBUF_STRIDES) {
                true => column.strides.as_ptr().cast_mut(),
                false => ptr::null_mut(),
            };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }
}
