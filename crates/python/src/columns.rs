//! `Column`: numbers that Python reads in the memory where Rust left them.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::mem::take;
use std::ptr;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyMemoryView};
use rtit_flow::return_column_to_pool;

/// Appends a copy of the contents of a buffer.
pub fn append_buffer<T: Element + Copy + Default>(
    py: Python<'_>,
    buffer: &PyBuffer<T>,
    to: &mut Vec<T>,
) -> PyResult<()> {
    let start = to.len();
    to.resize(start + buffer.item_count(), T::default());
    buffer.copy_to_slice(py, &mut to[start..])
}

/// Numbers of one type, with the read-only buffer protocol.
#[pyclass(frozen, module = "rtit._core")]
pub struct Column {
    numbers: ColumnData,
    shape: [isize; 1],
    strides: [isize; 1],
}

/// Defines the types that a column can have, each with its code in Python's `struct` module.
macro_rules! column_types {
    ($($variant:ident($number:ty) = $format:literal, $drop:expr;)*) => {
        enum ColumnData {
            $($variant(Vec<$number>),)*
        }

        impl ColumnData {
            /// Address, count, bytes of each, and format.
            fn layout(&self) -> (*const c_void, usize, usize, &'static CStr) {
                match self {
                    $(ColumnData::$variant(numbers) => {
                        (numbers.as_ptr().cast(), numbers.len(), size_of::<$number>(), $format)
                    })*
                }
            }
        }

        impl Drop for ColumnData {
            fn drop(&mut self) {
                match self {
                    $(ColumnData::$variant(numbers) => $drop(take(numbers)),)*
                }
            }
        }

        $(impl From<Vec<$number>> for Column {
            fn from(numbers: Vec<$number>) -> Column {
                Column {
                    shape: [numbers.len() as isize],
                    strides: [size_of::<$number>() as isize],
                    numbers: ColumnData::$variant(numbers),
                }
            }
        })*
    };
}

// The pool of buffers has none for f64.
column_types! {
    U8(u8) = c"B", return_column_to_pool;
    U32(u32) = c"I", return_column_to_pool;
    U64(u64) = c"Q", return_column_to_pool;
    F64(f64) = c"d", drop;
}

impl<T> FromIterator<T> for Column
where
    Column: From<Vec<T>>,
{
    fn from_iter<I: IntoIterator<Item = T>>(numbers: I) -> Column {
        Vec::from_iter(numbers).into()
    }
}

/// The column that has `value` of each row.
pub fn column_of_rows<R: IntoIterator, T>(rows: R, value: impl Fn(R::Item) -> T) -> Column
where
    Column: From<Vec<T>>,
{
    rows.into_iter().map(value).collect()
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
        let (address, count, size, format) = column.numbers.layout();
        let if_requested = |flag: c_int, pointer: *const isize| match flags & flag == flag {
            true => pointer.cast_mut(),
            false => ptr::null_mut(),
        };
        // SAFETY: `view` is Python's to fill. What it points to lives in the object, which `obj` keeps alive until the
        // view is released, and which is never changed: the class is frozen.
        unsafe {
            (*view).buf = address.cast_mut();
            (*view).len = (count * size) as isize;
            (*view).readonly = 1;
            (*view).itemsize = size as isize;
            (*view).format =
                if_requested(ffi::PyBUF_FORMAT, format.as_ptr().cast()).cast::<c_char>();
            (*view).ndim = 1;
            (*view).shape = if_requested(ffi::PyBUF_ND, column.shape.as_ptr());
            (*view).strides = if_requested(ffi::PyBUF_STRIDES, column.strides.as_ptr());
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }
}
