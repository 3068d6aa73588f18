//! Bytes, and columns of numbers, little-endian, as bytes objects; MemoryError if there is no room, where `PyBytes::new`
//! panics.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub fn bytes<'py>(py: Python<'py>, all: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, all.len(), |bytes| {
        bytes.copy_from_slice(all);
        Ok(())
    })
}

/// A column of `N` bytes a row.
fn column<'py, T, const N: usize>(
    py: Python<'py>,
    rows: &[T],
    value: impl Fn(&T) -> [u8; N],
) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, rows.len() * N, |bytes| {
        for (to, row) in bytes.chunks_exact_mut(N).zip(rows) {
            to.copy_from_slice(&value(row));
        }
        Ok(())
    })
}

pub fn words<'py, T>(
    py: Python<'py>,
    rows: &[T],
    value: impl Fn(&T) -> u64,
) -> PyResult<Bound<'py, PyBytes>> {
    column(py, rows, |row| value(row).to_le_bytes())
}

pub fn halves<'py, T>(
    py: Python<'py>,
    rows: &[T],
    value: impl Fn(&T) -> u32,
) -> PyResult<Bound<'py, PyBytes>> {
    column(py, rows, |row| value(row).to_le_bytes())
}

pub fn octets<'py, T>(
    py: Python<'py>,
    rows: &[T],
    value: impl Fn(&T) -> u8,
) -> PyResult<Bound<'py, PyBytes>> {
    column(py, rows, |row| [value(row)])
}
