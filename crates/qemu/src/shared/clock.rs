//! What the recorder and all recorded processes share: words in a file that each of them maps.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The latest clock that any recorded thread has published, what the recorder asks for, and how far the recording has
/// come (see `window`).
#[repr(C)]
struct Words {
    clock: AtomicU64,
    asked: AtomicU64,
    phase: AtomicU64,
    /// Retired instructions of all threads, and how many of them came before the start.
    retired: AtomicU64,
    started: AtomicU64,
}

pub(crate) struct SharedClock {
    words: &'static Words,
    /// Instructions after which the TSC has surely gone on.
    pub(crate) tick: u64,
}

impl SharedClock {
    pub(crate) fn open(path: &Path, tick: u64) -> io::Result<SharedClock> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let size = std::mem::size_of::<Words>();
        if file.metadata()?.len() < size as u64 {
            return Err(io::Error::other("the clock's file is too short"));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that is long enough; it is never unmapped, and page aligned.
        let words = unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                size,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            &*at.cast::<Words>()
        };
        Ok(SharedClock { words, tick })
    }

    pub(crate) fn latest(&self) -> u64 {
        self.words.clock.load(Ordering::SeqCst)
    }

    pub(crate) fn publish(&self, clock: u64) {
        self.words.clock.fetch_max(clock, Ordering::SeqCst);
    }

    /// Goes up when the recorder wants to have what threads hold back.
    pub(crate) fn asked(&self) -> u64 {
        self.words.asked.load(Ordering::Relaxed) >> 1
    }

    /// The recorder takes no more packets.
    pub(crate) fn full(&self) -> bool {
        self.words.asked.load(Ordering::Relaxed) & 1 == 1
    }

    pub(crate) fn phase(&self) -> u64 {
        self.words.phase.load(Ordering::SeqCst)
    }

    /// The phase ends, `more` instructions after what has been counted. False if it had ended.
    pub(crate) fn leave_phase(&self, phase: u64, more: u64) -> bool {
        let words = self.words;
        let retired = words.retired.load(Ordering::SeqCst) + more;
        let order = Ordering::SeqCst;
        if phase == 0 {
            // The first one counts; nobody reads it before the phase.
            let _ = words.started.compare_exchange(0, retired, order, order);
        }
        let next = phase + 1;
        let left = words.phase.compare_exchange(phase, next, order, order);
        left.is_ok() || phase == 1 && words.phase.swap(next, order) == 0
    }

    pub(crate) fn started(&self) -> u64 {
        self.words.started.load(Ordering::SeqCst)
    }

    /// So many more instructions have retired; how many that makes.
    pub(crate) fn count(&self, more: u64) -> u64 {
        self.words.retired.fetch_add(more, Ordering::SeqCst) + more
    }
}
