//! Instructions: their text, what they mean to PT, and how often each ran.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rtit_flow::RunTotal;

use crate::arguments::{code_mode_of_bits, dict_of};
use crate::columns::{column_of_rows, Column};
use crate::image::Space;

#[pyfunction]
#[pyo3(signature = (data, ip, bits = 64))]
pub fn disassemble(data: &[u8], ip: u64, bits: u32) -> PyResult<String> {
    Ok(rtit_x86::format_instruction(
        data,
        ip,
        code_mode_of_bits(bits)?,
    ))
}

#[pyfunction]
#[pyo3(signature = (data, ip, bits = 64))]
pub fn decode_instruction(data: &[u8], ip: u64, bits: u32) -> PyResult<(u8, u8, u64, bool)> {
    let found = rtit_x86::decode(data, ip, code_mode_of_bits(bits)?)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((found.length, found.class as u8, found.target, found.repeats))
}

#[pyfunction]
#[pyo3(signature = (space, starts, instructions, counts, bits = 64))]
pub fn count_instructions<'py>(
    py: Python<'py>,
    space: &Space,
    starts: PyBuffer<u64>,
    instructions: PyBuffer<u32>,
    counts: PyBuffer<u64>,
    bits: u32,
) -> PyResult<(Bound<'py, PyDict>, u64)> {
    let (starts, instructions) = (starts.to_vec(py)?, instructions.to_vec(py)?);
    let counts = counts.to_vec(py)?;
    if [instructions.len(), counts.len()] != [starts.len(); 2] {
        return Err(PyValueError::new_err("the columns differ in length"));
    }
    let mode = code_mode_of_bits(bits)?;
    let view = space.image_space().view_at_start();
    let found = py.detach(|| {
        let rows = starts.into_iter().zip(instructions).zip(counts);
        let runs = rows.map(|((start, instructions), count)| RunTotal {
            start,
            instructions,
            count,
        });
        rtit_flow::count_instructions(&view, mode, runs)
    });
    let rows = &found.instructions;
    let columns = dict_of!(py,
        ip: column_of_rows(rows, |row| row.ip),
        size: column_of_rows(rows, |row| row.length),
        kind: column_of_rows(rows, |row| row.class),
        count: column_of_rows(rows, |row| row.count),
    );
    Ok((columns?, found.unknown))
}

/// Instructions that one call looks at.
const MAX_INSTRUCTIONS: usize = 1 << 20;

type Branches = (Column, Column, Column, Column, Option<(u32, u64)>);

#[pyfunction]
#[pyo3(signature = (space, starts, sizes, bits = 64))]
pub fn conditional_branches(
    py: Python<'_>,
    space: &Space,
    starts: PyBuffer<u64>,
    sizes: PyBuffer<u64>,
    bits: u32,
) -> PyResult<Branches> {
    let (starts, sizes) = (starts.to_vec(py)?, sizes.to_vec(py)?);
    if starts.len() != sizes.len() {
        return Err(PyValueError::new_err("the columns differ in length"));
    }
    let mode = code_mode_of_bits(bits)?;
    let view = space.image_space().view_at_start();
    let (rows, next) = py.detach(|| {
        let ranges = starts.into_iter().zip(sizes);
        rtit_flow::find_conditional_branches(&view, mode, ranges, MAX_INSTRUCTIONS)
    });
    Ok((
        column_of_rows(&rows, |row| row.range),
        column_of_rows(&rows, |row| row.ip),
        column_of_rows(&rows, |row| row.fall_through),
        column_of_rows(&rows, |row| row.target),
        next,
    ))
}
