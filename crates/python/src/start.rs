//! How things are where a stream begins, as Python says it.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rtit_flow::InitialState;
use rtit_x86::Mode;

/// IP of the next instruction or None, bits of the code, LastIP.
pub struct Beginning(pub InitialState);

impl<'a, 'py> FromPyObject<'a, 'py> for Beginning {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Beginning> {
        let (ip, bits, last_ip): (Option<u64>, u8, u64) = object.extract()?;
        let mode = match bits {
            16 => Mode::Bits16,
            32 => Mode::Bits32,
            64 => Mode::Bits64,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "code of {bits} bits: it is 16, 32 or 64"
                )))
            }
        };
        Ok(Beginning(InitialState { ip, mode, last_ip }))
    }
}
