//! Files that become shorter while they are mapped: what is beyond their end is zeros from then on, instead of the end of
//! the process (SIGBUS).

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Guard>()
}

/// Maps that are guarded at once; those beyond are not.
const MOST: usize = 1024;
/// The start of a range that is being made or taken away.
const CHANGING: usize = 1;

struct Range {
    /// 0: nobody has it.
    start: AtomicUsize,
    end: AtomicUsize,
    hit: AtomicBool,
}

static RANGES: [Range; MOST] = [const {
    Range {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        hit: AtomicBool::new(false),
    }
}; MOST];
/// The action that ours took the place of. Never freed: a handler may be about to read it.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());
/// The thread that runs what acted before us; 0: none.
static GOING_ON: AtomicI32 = AtomicI32::new(0);

/// Guards the memory of a mapped file, which is `mapped`'s buffer, until `close`: no later than that it is unmapped. It
/// sets the process's action for SIGBUS, if that is not ours; what is not about guarded memory goes on to the action
/// of before.
#[pyclass(frozen, module = "rtit._core")]
pub struct Guard {
    slot: Mutex<Option<usize>>,
    range: (usize, usize),
    hit: AtomicBool,
}

#[pymethods]
impl Guard {
    #[new]
    fn new(py: Python<'_>, mapped: PyBuffer<u8>) -> Guard {
        watch(py);
        let start = mapped.buf_ptr() as usize;
        let range = (start, start + mapped.len_bytes());
        Guard {
            slot: Mutex::new(take(range)),
            range,
            hit: AtomicBool::new(false),
        }
    }

    /// After `close`, if the memory is mapped all the same.
    fn go_on(&self) {
        let mut slot = self.slot();
        *slot = slot.or_else(|| take(self.range));
    }

    /// Whether anything was read that is not there any more.
    #[getter]
    fn hit(&self) -> bool {
        if let Some(slot) = *self.slot() {
            let hit = RANGES[slot].hit.load(Ordering::Relaxed);
            self.hit.fetch_or(hit, Ordering::Relaxed);
        }
        self.hit.load(Ordering::Relaxed)
    }

    /// Lets go of the memory. Again is harmless.
    fn close(&self) {
        self.hit();
        if let Some(slot) = self.slot().take() {
            give_back(slot);
        }
    }
}

impl Guard {
    fn slot(&self) -> MutexGuard<'_, Option<usize>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.close();
    }
}

fn take((start, end): (usize, usize)) -> Option<usize> {
    let free = |range: &Range| {
        let changed =
            range
                .start
                .compare_exchange(0, CHANGING, Ordering::Acquire, Ordering::Relaxed);
        changed.is_ok()
    };
    let slot = RANGES.iter().position(free)?;
    let range = &RANGES[slot];
    range.end.store(end, Ordering::Relaxed);
    range.hit.store(false, Ordering::Relaxed);
    range.start.store(start, Ordering::Release);
    Some(slot)
}

fn give_back(slot: usize) {
    RANGES[slot].start.store(CHANGING, Ordering::Release);
    RANGES[slot].end.store(0, Ordering::Relaxed);
    RANGES[slot].start.store(0, Ordering::Release);
}

/// Sets the action for SIGBUS, unless it is ours: others may have set theirs since.
fn watch(_one_at_a_time: Python<'_>) {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: reads the action into memory of its size, where all zeros are an action, too.
    let before = unsafe {
        libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr());
        Box::new(before.assume_init())
    };
    let mut action = *before;
    action.sa_sigaction = on_bus as *const () as usize;
    if action.sa_sigaction == before.sa_sigaction {
        return;
    }
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    BEFORE.store(Box::into_raw(before), Ordering::Release);
    // SAFETY: the handler calls nothing that a handler may not: atomics, gettid, mmap, sigaction.
    unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) };
}

extern "C" fn on_bus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a siginfo of a fault, or of whoever sent the signal; then the address is none of ours.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    if code == libc::BUS_ADRERR && shows_zeros(address) {
        return;
    }
    go_on(signal, info, context);
}

/// Puts zeros from the page of `address` to the end of its map. False if it is in none.
fn shows_zeros(address: usize) -> bool {
    for range in &RANGES {
        let (start, end) = (
            range.start.load(Ordering::Acquire),
            range.end.load(Ordering::Relaxed),
        );
        if start <= CHANGING || !(start..end).contains(&address) {
            continue;
        }
        range.hit.store(true, Ordering::Relaxed);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: replaces pages of a map that can only be read; errno is put back.
        return unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let errno = *libc::__errno_location();
            let from = address - address % page;
            let zeros = libc::mmap(from as *mut _, end - from, libc::PROT_READ, flags, -1, 0);
            *libc::__errno_location() = errno;
            zeros != libc::MAP_FAILED
        };
    }
    false
}

/// What was set before us acts. If that comes back to us, as one does that sets again what it found, which was ours, it is
/// the end of the process.
fn go_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: null, or an action that is never freed.
    let before = unsafe { BEFORE.load(Ordering::Acquire).as_ref() };
    // SAFETY: asks for a number.
    let thread = unsafe { libc::gettid() };
    let again = GOING_ON.load(Ordering::Relaxed) == thread;
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    if again || handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        let handler = if again { libc::SIG_DFL } else { handler };
        // SAFETY: sets an action; the instruction faults again, or the signal comes again, and finds it.
        unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            action.sa_sigaction = handler;
            libc::sigaction(signal, &action, ptr::null_mut());
            if (*info).si_code <= 0 {
                libc::raise(signal);
            }
        }
        return;
    }
    let takes_more = before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0);
    GOING_ON.store(thread, Ordering::Relaxed);
    // SAFETY: a handler that was set with these flags takes these arguments.
    unsafe {
        if takes_more {
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
            handler(signal);
        }
    }
    GOING_ON.store(0, Ordering::Relaxed);
}
