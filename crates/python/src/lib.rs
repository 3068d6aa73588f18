//! The native module `rtit._core`: one file per topic, each with a `register` function.

mod flow;
mod image;
mod packet;
mod tracer;
mod truth;
mod x86;

use pyo3::prelude::*;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    flow::register(module)?;
    image::register(module)?;
    packet::register(module)?;
    tracer::register(module)?;
    truth::register(module)?;
    x86::register(module)
}
