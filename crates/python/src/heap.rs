//! No memory, where Rust knows no error for it: the process is aborted then. The command ends instead as it does by any
//! other error, after the one line that Rust writes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(ends_without_memory, module)?)
}

#[global_allocator]
static HEAP: Heap = Heap;

/// Some allocation was refused; whoever asked may have done without.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// That of the system, which notes what it refuses.
struct Heap;

// SAFETY: all is done by `System`, with the arguments as they are.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is that of `System`.
        noted(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is that of `System`.
        noted(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract is that of `System`.
        noted(unsafe { System.realloc(memory, layout, size) })
    }
}

#[inline]
fn noted(memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        REFUSED.store(true, Ordering::Relaxed);
    }
    memory
}

/// From now on the process ends with exit code 1 where it would be aborted (SIGABRT) because there is no memory. For a
/// process of our own alone: nothing is run or written any more but what Rust says of it.
#[pyfunction]
fn ends_without_memory() {
    // SAFETY: the handler calls nothing that a handler may not: an atomic, _exit, signal.
    unsafe { libc::signal(libc::SIGABRT, on_abort as *const () as usize) };
}

extern "C" fn on_abort(signal: libc::c_int) {
    // SAFETY: both may be called by a handler; where it returns, abort() sends the signal once more.
    unsafe {
        if REFUSED.load(Ordering::Relaxed) {
            libc::_exit(1);
        }
        libc::signal(signal, libc::SIG_DFL);
    }
}
