//! What is raised while native code runs without the GIL, and kept for when it ends.

use std::sync::Arc;

use pyo3::prelude::*;

pub trait Raising: Send + Sync {
    /// Raises what is kept, if anything is.
    fn check(&self, py: Python<'_>) -> PyResult<()>;

    /// Another stream begins.
    fn begin(&self) {}
}

/// All who may have raised something.
pub type Raisers = Vec<Arc<dyn Raising>>;

/// Raises what one of those has raised.
pub fn check(py: Python<'_>, raisers: &Raisers) -> PyResult<()> {
    raisers.iter().try_for_each(|each| each.check(py))
}
