//! Objects that one thread uses at a time.

use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::prelude::*;

pyo3::import_exception!(rtit.errors, ConcurrentUseError);

/// Locks the state of an object named `name`. ConcurrentUseError if another thread holds the lock.
///
/// Waiting instead would deadlock: this thread holds the GIL, which the other one needs to finish.
pub fn lock<'a, T>(state: &'a Mutex<T>, name: &'static str) -> PyResult<MutexGuard<'a, T>> {
    match state.try_lock() {
        Ok(state) => Ok(state),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(ConcurrentUseError::new_err(format!(
            "another thread is using this {name}: open one in each thread, or use a lock"
        ))),
    }
}
