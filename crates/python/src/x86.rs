//! `disassemble`: instructions as text, for Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rtit_x86::Mode;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(disassemble, module)?)
}

/// The instruction at `ip` in Intel's syntax; `(bad)` if the bytes are none. `bits` is 16, 32 or 64.
#[pyfunction]
#[pyo3(signature = (data, ip, bits = 64))]
fn disassemble(data: &[u8], ip: u64, bits: u32) -> PyResult<String> {
    let mode = match bits {
        16 => Mode::Bits16,
        32 => Mode::Bits32,
        64 => Mode::Bits64,
        _ => {
            return Err(PyValueError::new_err(format!(
                "bits is 16, 32 or 64, not {bits}"
            )))
        }
    };
    Ok(rtit_x86::format(data, ip, mode))
}
