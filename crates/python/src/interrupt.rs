//! Ctrl-C while native code is on a long way.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rtit_flow::CancellationToken;

use crate::raising::Raising;

/// The GIL is not taken more often by a thread: others may keep it for a while.
const PERIOD: Duration = Duration::from_millis(50);

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Lets signal handlers run; what they raise is kept for whoever decodes, and ends that for good.
#[derive(Default)]
pub struct Interrupt {
    gives_up: AtomicBool,
    raised: Mutex<Option<PyErr>>,
}

impl Interrupt {
    /// Who is asked on the way, and who has the errors of that.
    pub fn new() -> (CancellationToken, Arc<Interrupt>) {
        let raised = Arc::new(Interrupt::default());
        let asked = Arc::clone(&raised);
        (CancellationToken::new(move || asked.gives_up()), raised)
    }

    /// Whether to give up: handlers of signals have run, and one has raised something.
    pub fn gives_up(&self) -> bool {
        if self.gives_up.load(Ordering::Relaxed) {
            return true;
        }
        let now = Instant::now();
        let waits = |last: Instant| now.duration_since(last) < PERIOD;
        if LAST.get().is_some_and(waits) {
            return false;
        }
        LAST.set(Some(now));
        // Python runs handlers in its main thread alone: elsewhere this does nothing
        if let Err(error) = Python::attach(|py| py.check_signals()) {
            *self.raised() = Some(error);
            self.gives_up.store(true, Ordering::Relaxed);
            return true;
        }
        false
    }

    fn raised(&self) -> MutexGuard<'_, Option<PyErr>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Raising for Interrupt {
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let raised = self.raised();
        raised
            .as_ref()
            .map_or(Ok(()), |error| Err(error.clone_ref(py)))
    }

    fn begin(&self) {
        *self.raised() = None;
        self.gives_up.store(false, Ordering::Relaxed);
    }
}
