//! `disassemble` and `decode_instruction`: instructions as text and as what they mean to PT, for Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rtit_x86::Mode;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(decode_instruction, module)?)?;
    module.add_function(wrap_pyfunction!(disassemble, module)?)
}

/// The instruction at `ip` in Intel's syntax; `(bad)` if the bytes are none. `bits` is 16, 32 or 64.
#[pyfunction]
#[pyo3(signature = (data, ip, bits = 64))]
fn disassemble(data: &[u8], ip: u64, bits: u32) -> PyResult<String> {
    Ok(rtit_x86::format(data, ip, mode(bits)?))
}

/// (length, class, target, repeats) of the instruction at `ip`: the class as `rtit.x86.Class` numbers it, the target
/// of a direct branch, else 0. ValueError: the bytes are none, or end inside it; `bits` is not 16, 32 or 64.
#[pyfunction]
#[pyo3(signature = (data, ip, bits = 64))]
fn decode_instruction(data: &[u8], ip: u64, bits: u32) -> PyResult<(u8, u8, u64, bool)> {
    let found = rtit_x86::decode(data, ip, mode(bits)?)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((found.length, found.class as u8, found.target, found.repeats))
}

pub fn mode(bits: u32) -> PyResult<Mode> {
    match bits {
        16 => Ok(Mode::Bits16),
        32 => Ok(Mode::Bits32),
        64 => Ok(Mode::Bits64),
        _ => Err(PyValueError::new_err(format!(
            "bits is 16, 32 or 64, not {bits}"
        ))),
    }
}
