//! `conditionals`: the conditional branches of code, for Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rtit_flow::Conditional;

use crate::column::Column;
use crate::image::Space;
use crate::x86::mode;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(conditionals, module)?)
}

/// Instructions of one call.
const MOST: usize = 1 << 20;

type Found = (Column, Column, Column, Column, Option<(u32, u64)>);

/// The conditional branches of stretches of code, whether they ran or not: little-endian columns of starts and sizes
/// (u64). `space` has the code at its beginning. A stretch ends before its first byte that is no instruction.
///
/// Columns in the order of the stretches: numbers of stretches (u32), IPs, where each leads if it is not taken, and if
/// it is (u64). No more than 2^20 instructions are looked at: then comes the number of the stretch in which to go on,
/// and the bytes of it that are done, else None. ValueError: columns of different lengths, or `bits` is not 16, 32 or
/// 64.
#[pyfunction]
#[pyo3(signature = (space, starts, sizes, bits = 64))]
fn conditionals(
    py: Python<'_>,
    space: &Space,
    starts: &[u8],
    sizes: &[u8],
    bits: u32,
) -> PyResult<Found> {
    if starts.len() != sizes.len() || starts.len() % 8 != 0 {
        return Err(PyValueError::new_err("the columns differ in length"));
    }
    let mode = mode(bits)?;
    let view = space.inner().view();
    let wide = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let (all, next) = py.detach(|| {
        let columns = starts.chunks_exact(8).zip(sizes.chunks_exact(8));
        let stretches = columns.map(|(start, size)| (wide(start), wide(size)));
        rtit_flow::conditionals(&view, mode, stretches, MOST)
    });
    let wide = |value: fn(&Conditional) -> u64| all.iter().map(value).collect::<Column>();
    Ok((
        all.iter().map(|each| each.range).collect(),
        wide(|each| each.ip),
        wide(|each| each.fall_through),
        wide(|each| each.target),
        next,
    ))
}
