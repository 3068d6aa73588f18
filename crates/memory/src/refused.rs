//! How work ends where memory is refused.

use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

static SCARCE: AtomicBool = AtomicBool::new(false);

/// Whether too much of a reserve is in use to go on.
pub(crate) fn set_scarce(scarce: bool) {
    SCARCE.store(scarce, Ordering::Relaxed);
}

/// Unwinds if memory is scarce.
#[inline]
pub fn look() {
    if SCARCE.load(Ordering::Relaxed) {
        refuse();
    }
}

/// Unwinds to whoever began the work.
#[cold]
#[inline(never)]
pub fn refuse() -> ! {
    resume_unwind(Box::new(Refused))
}

/// What `work` gives, unless memory was refused on the way: then what it changed means nothing any more. Panics go on.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Refused> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| match payload.downcast::<Refused>() {
        Ok(refused) => *refused,
        Err(payload) => resume_unwind(payload),
    })
}
