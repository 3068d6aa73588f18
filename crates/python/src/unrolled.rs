//! `unrolled`: counts of instructions from counts of runs, for Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rtit_flow::{InstructionCount, RunTotal};

use crate::column::Column;
use crate::image::Space;
use crate::x86::mode;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(unrolled, module)?)
}

type InstructionCounts = (Column, Column, Column, Column, Column, u64);

/// How often each instruction ran, of runs as `Flow.totals` has them: little-endian columns of starts (u64),
/// instructions (u32) and counts (u64). `space` has their code at its beginning.
///
/// Columns by IP: IPs (u64), lengths (u8), classes as `rtit.x86.Class` has them (u8), counts (u64). Then a column with
/// the IP of the last instruction of each run (u64; 2^64-1 where the code is not known that far), and how many
/// instructions ran where no code is known. ValueError: columns of different lengths, or `bits` is not 16, 32 or 64.
#[pyfunction]
#[pyo3(signature = (space, starts, instructions, counts, bits = 64))]
fn unrolled(
    py: Python<'_>,
    space: &Space,
    starts: &[u8],
    instructions: &[u8],
    counts: &[u8],
    bits: u32,
) -> PyResult<InstructionCounts> {
    let rows = starts.len() / 8;
    if [rows * 8, rows * 4, rows * 8] != [starts.len(), instructions.len(), counts.len()] {
        return Err(PyValueError::new_err("the columns differ in length"));
    }
    let mode = mode(bits)?;
    let view = space.inner().view();
    let wide = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let found = py.detach(|| {
        let numbers = instructions.chunks_exact(4);
        let columns = starts
            .chunks_exact(8)
            .zip(numbers)
            .zip(counts.chunks_exact(8));
        let runs = columns.map(|((start, number), count)| RunTotal {
            start: wide(start),
            instructions: number.try_into().map_or(0, u32::from_le_bytes),
            count: wide(count),
        });
        rtit_flow::count_instructions(&view, mode, runs)
    });
    let all = &found.instructions;
    let wide = |value: fn(&InstructionCount) -> u64| all.iter().map(value).collect::<Column>();
    let octets = |value: fn(&InstructionCount) -> u8| all.iter().map(value).collect::<Column>();
    Ok((
        wide(|each| each.ip),
        octets(|each| each.length),
        octets(|each| each.class),
        wide(|each| each.count),
        found.lasts.into(),
        found.unknown,
    ))
}
