//! The native module `rtit._core`: one file per topic, each with a `register` function.

mod account;
mod advance;
mod arguments;
mod arrow;
mod as_bytes;
mod calls;
mod column;
mod conditionals;
mod decoder;
mod decoding;
mod elf_file;
mod ended;
mod exclusive;
mod flow;
mod image;
mod in_turn;
mod interrupt;
mod listing;
mod missing;
mod names;
mod packet;
mod packet_columns;
mod points;
mod process;
mod raising;
mod results;
mod settings;
mod spaces;
mod start;
mod stream;
mod table;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod tracer;
mod truth;
mod unit;
mod unrolled;
mod unzstd;
mod way;
mod x86;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

// Free-threaded Python is not supported: the stable ABI has no such build before 3.15, and no test covers one.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // SAFETY: the GIL is held, so this thread has a current interpreter.
    if unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) } != 0 {
        // PyO3 keeps type objects in statics, which interpreters must not share.
        return Err(PyImportError::new_err(
            "rtit does not support subinterpreters",
        ));
    }
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("MOST_PLACES", rtit_flow::DEFAULT_MAX_COUNTERS)?;
    arrow::register(module)?;
    calls::register(module)?;
    decoder::register(module)?;
    flow::register(module)?;
    image::register(module)?;
    elf_file::register(module)?;
    listing::register(module)?;
    names::register(module)?;
    packet::register(module)?;
    packet_columns::register(module)?;
    process::register(module)?;
    table::register(module)?;
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    tracer::register(module)?;
    truth::register(module)?;
    unit::register(module)?;
    unrolled::register(module)?;
    conditionals::register(module)?;
    unzstd::register(module)?;
    x86::register(module)
}
