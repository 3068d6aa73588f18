//! Errors and interrupts between Rust and Python.
//!
//! Decoders run without the GIL. An error in Python code that they call, or a signal handler's, cannot be raised there:
//! it is kept in a `PendingError`, stops the decoder, and is raised by `check_errors` once the GIL is held again.
//! Nothing else in this crate looks for signals while the GIL is released.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rtit_flow::CancellationToken;

use crate::arguments::{dict_of, os_text_to_str};

pyo3::import_exception!(rtit.errors, ConcurrentUseError);

/// A source of errors that occur while the GIL is released.
pub trait PendingError: Send + Sync {
    /// Raises the error that is kept, if there is one.
    fn check_pending_error(&self, py: Python<'_>) -> PyResult<()>;

    /// Drops the error before the next stream, if it would be raised again.
    fn reset_pending_error(&self) {}
}

pub type PendingErrors = Vec<Arc<dyn PendingError>>;

/// Raises a kept error, or what a signal handler raises.
pub fn check_errors(py: Python<'_>, errors: &PendingErrors) -> PyResult<()> {
    errors
        .iter()
        .try_for_each(|each| each.check_pending_error(py))?;
    py.check_signals()
}

/// Locks a mutex, also after a panic of another thread.
pub fn lock_despite_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the state of an object named `name`. ConcurrentUseError if another thread holds the lock.
///
/// Waiting instead would deadlock: this thread holds the GIL, which the other one needs to finish.
pub fn lock_exclusively<'a, T>(
    state: &'a Mutex<T>,
    name: &'static str,
) -> PyResult<MutexGuard<'a, T>> {
    match state.try_lock() {
        Ok(state) => Ok(state),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(ConcurrentUseError::new_err(format!(
            "another thread is using this {name}: open one in each thread, or use a lock"
        ))),
    }
}

/// The error `class` of `rtit.errors` about a file, with offset and bad value where these are known.
pub fn error_about_file(
    py: Python<'_>,
    class: &str,
    message: String,
    path: &Path,
    offset: Option<u64>,
    value: Option<u64>,
) -> PyErr {
    let build = || {
        let source = os_text_to_str(py, path.as_os_str())?;
        let keywords = dict_of!(py, source: source, offset: offset, value: value)?;
        let class = py.import("rtit.errors")?.getattr(class)?;
        Ok(PyErr::from_value(class.call((message,), Some(&keywords))?))
    };
    build().unwrap_or_else(|error| error)
}

/// A thread does not take the GIL more often: others may keep it for a while.
const SIGNAL_CHECK_PERIOD: Duration = Duration::from_millis(50);

thread_local! {
    static LAST_CHECK: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Runs signal handlers while a decoder works; an error of one, such as KeyboardInterrupt, stops the decoder for good.
#[derive(Default)]
pub struct SignalInterrupt {
    is_raised: AtomicBool,
    error: Mutex<Option<PyErr>>,
}

impl SignalInterrupt {
    /// A token that stops a decoder, and the source of the error that it has then.
    pub fn new() -> (CancellationToken, Arc<SignalInterrupt>) {
        let interrupt = Arc::new(SignalInterrupt::default());
        let checked = Arc::clone(&interrupt);
        (
            CancellationToken::new(move || checked.check_signals()),
            interrupt,
        )
    }

    /// Runs handlers of signals; whether one has raised an error.
    pub fn check_signals(&self) -> bool {
        if self.is_raised.load(Ordering::Relaxed) {
            return true;
        }
        let now = Instant::now();
        let is_recent = |last: Instant| now.duration_since(last) < SIGNAL_CHECK_PERIOD;
        if LAST_CHECK.get().is_some_and(is_recent) {
            return false;
        }
        LAST_CHECK.set(Some(now));
        // Python runs handlers in its main thread only: elsewhere this does nothing.
        if let Err(error) = Python::attach(|py| py.check_signals()) {
            *lock_despite_poison(&self.error) = Some(error);
            self.is_raised.store(true, Ordering::Relaxed);
            return true;
        }
        false
    }
}

impl PendingError for SignalInterrupt {
    fn check_pending_error(&self, py: Python<'_>) -> PyResult<()> {
        let error = lock_despite_poison(&self.error);
        error
            .as_ref()
            .map_or(Ok(()), |error| Err(error.clone_ref(py)))
    }

    fn reset_pending_error(&self) {
        *lock_despite_poison(&self.error) = None;
        self.is_raised.store(false, Ordering::Relaxed);
    }
}
