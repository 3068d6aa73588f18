//! Columns of numbers as little-endian bytes objects, and the contents of buffers.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Appends a copy of the contents of a buffer.
pub fn take_in<T: Element + Copy + Default>(
    py: Python<'_>,
    buffer: &PyBuffer<T>,
    to: &mut Vec<T>,
) -> PyResult<()> {
    let (from, count) = (to.len(), buffer.item_count());
    to.resize(from + count, T::default());
    buffer.copy_to_slice(py, &mut to[from..])
}

/// A column of `N` bytes a row.
fn column<'py, R, const N: usize>(
    py: Python<'py>,
    rows: R,
    value: impl Fn(R::Item) -> [u8; N],
) -> PyResult<Bound<'py, PyBytes>>
where
    R: IntoIterator,
    R::IntoIter: ExactSizeIterator,
{
    let rows = rows.into_iter();
    PyBytes::new_with(py, rows.len() * N, |bytes| {
        for (to, row) in bytes.chunks_exact_mut(N).zip(rows) {
            to.copy_from_slice(&value(row));
        }
        Ok(())
    })
}

pub fn words<'py, R>(
    py: Python<'py>,
    rows: R,
    value: impl Fn(R::Item) -> u64,
) -> PyResult<Bound<'py, PyBytes>>
where
    R: IntoIterator,
    R::IntoIter: ExactSizeIterator,
{
    column(py, rows, |row| value(row).to_le_bytes())
}

pub fn octets<'py, R>(
    py: Python<'py>,
    rows: R,
    value: impl Fn(R::Item) -> u8,
) -> PyResult<Bound<'py, PyBytes>>
where
    R: IntoIterator,
    R::IntoIter: ExactSizeIterator,
{
    column(py, rows, |row| [value(row)])
}
