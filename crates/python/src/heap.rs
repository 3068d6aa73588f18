//! No memory: an error for whoever asked for work. Where Rust knows no error for it, which is where even the reserve is
//! not enough, the process is aborted; the command ends then as it does by any other error, after the line that Rust writes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use rtit_memory::{caught, Reserves};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    RESERVES.are_ready();
    module.add_function(wrap_pyfunction!(ends_without_memory, module)?)?;
    module.add_function(wrap_pyfunction!(gives_memory_back, module)?)
}

#[global_allocator]
static HEAP: Heap = Heap;

/// That of the system, and the reserve for what it refuses.
struct Heap;

static RESERVES: Reserves = Reserves::new(mapped);

/// A new map of so many bytes, which the system chooses.
fn mapped(size: usize) -> Option<usize> {
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: nothing that is there is replaced.
    let map = unsafe { libc::mmap(ptr::null_mut(), size, access, kind, -1, 0) };
    (map != libc::MAP_FAILED).then_some(map as usize)
}

// SAFETY: memory is that of `System`, by its own rules, or a reserve's, which gives each part of it to one at a time, as
// long and as aligned as asked for.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is that of `System`.
        let memory = unsafe { System.alloc(layout) };
        match memory.is_null() {
            true => refused(layout),
            false => memory,
        }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if RESERVES.may_have(memory as usize) && RESERVES.give_back(memory as usize, layout) {
            return;
        }
        // SAFETY: the caller's contract is that of `System`, of which the memory is.
        unsafe { System.dealloc(memory, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !RESERVES.may_have(memory as usize) {
            // SAFETY: the caller's contract is that of `System`, of which the memory is.
            let grown = unsafe { System.realloc(memory, layout, size) };
            if !grown.is_null() {
                return grown;
            }
        }
        // SAFETY: as the caller's: `size` does not overflow with that alignment.
        unsafe { self.moved(memory, layout, size) }
    }
}

impl Heap {
    /// # Safety
    /// As `realloc`.
    #[cold]
    unsafe fn moved(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller says so; both parts are as long as what is copied, and not the same.
        unsafe {
            let other = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !other.is_null() {
                other.copy_from_nonoverlapping(memory, layout.size().min(size));
                self.dealloc(memory, layout);
            }
            other
        }
    }
}

/// What the system has not.
#[cold]
fn refused(layout: Layout) -> *mut u8 {
    let memory = RESERVES.take(layout);
    if memory.is_none() {
        REFUSED.store(true, Ordering::Relaxed);
        REFUSALS.set(REFUSALS.get().wrapping_add(1));
    }
    memory.map_or(ptr::null_mut(), |at| at as *mut u8)
}

/// Something was refused; whoever asked may have done without.
static REFUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// How often this thread was refused memory.
    static REFUSALS: Cell<u32> = const { Cell::new(0) };
    /// It is in a call already.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// A call of this thread, or one within it; or what leaves a call for a while.
struct Call {
    was_within: bool,
}

impl Call {
    fn new(is_within: bool) -> Call {
        Call {
            was_within: WITHIN.replace(is_within),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        WITHIN.set(self.was_within);
    }
}

/// What `work` gives; MemoryError if memory was refused on the way, or if there is none to begin with: then what it changed
/// means nothing any more. The outermost call looks for memory for the objects that are made of what it gives; `work` does
/// for those that it makes itself (`room_for`).
pub fn bounded<T>(py: Python<'_>, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let done = without_objects(py, work);
    if !WITHIN.get() {
        room_for(py, FEW)?;
    }
    done
}

/// As `bounded`, where no objects are made of what comes of it: MemoryError is of `work` alone.
pub fn without_objects<T>(py: Python<'_>, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    if !RESERVES.are_ready() {
        return Err(no_memory(py));
    }
    let before = REFUSALS.get();
    let _call = Call::new(true);
    match caught(work) {
        // who knows an error for it may have said another, or found less
        Ok(done) if REFUSALS.get() == before => done,
        _ => Err(no_memory(py)),
    }
}

/// What a call asks of Python, whose code may call us: such a call is an outermost one, of which objects are made before
/// the one around it looks for memory.
pub fn outside<T>(ask: impl FnOnce() -> T) -> T {
    let _call = Call::new(false);
    ask()
}

/// Objects that are made of a result without asking first.
pub const FEW: usize = 1 << 12;
/// Bytes of an object, about: rows and words are larger than numbers.
const OBJECT: usize = 1 << 9;

/// MemoryError unless Python has memory for so many objects, or for a few: PyO3 panics where one cannot be made.
pub fn room_for(py: Python<'_>, objects: usize) -> PyResult<()> {
    let size = objects.max(FEW).saturating_mul(OBJECT);
    let map = mapped(size).ok_or_else(|| no_memory(py))?;
    // SAFETY: nobody else knows the map.
    unsafe { libc::munmap(map as *mut libc::c_void, size) };
    Ok(())
}

/// As `bounded`, without the GIL.
pub fn unlocked<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    bounded(py, || Ok(py.detach(work)))
}

/// Whether work is at its end because memory was refused, be it by Python: what it had done so far may have been lost.
pub fn ends_work<T>(py: Python<'_>, result: &PyResult<T>) -> bool {
    let refused = |error: &PyErr| error.is_instance_of::<PyMemoryError>(py);
    result.as_ref().is_err_and(refused)
}

/// Python has one that takes no memory.
#[cold]
pub fn no_memory(py: Python<'_>) -> PyErr {
    // SAFETY: the GIL is held.
    unsafe { ffi::PyErr_NoMemory() };
    PyErr::fetch(py)
}

/// From now on the process ends with exit code 1 where it would be aborted (SIGABRT) because there is no memory. For a
/// process of our own alone: nothing is run or written any more but what Rust says of it.
#[pyfunction]
fn ends_without_memory() {
    // SAFETY: the handler calls nothing that a handler may not: an atomic, _exit, signal.
    unsafe { libc::signal(libc::SIGABRT, on_abort as *const () as usize) };
}

/// From now on what is large goes back to the system when it is freed, for a process of our own alone: by itself glibc keeps
/// up to 32 MB of each such block, and where tables grow and batches come and go that leaves holes.
#[pyfunction]
fn gives_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: a number is set.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE)
    };
}

/// In bytes: smaller columns and buffers are used again, mostly.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: libc::c_int = 1 << 20;

extern "C" fn on_abort(signal: libc::c_int) {
    // SAFETY: both may be called by a handler; where it returns, abort() sends the signal once more.
    unsafe {
        if REFUSED.load(Ordering::Relaxed) {
            libc::_exit(1);
        }
        libc::signal(signal, libc::SIG_DFL);
    }
}
