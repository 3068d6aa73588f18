//! Words in a file that the recorder and all recorded processes map.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The latest published clock of any thread, the recorder's requests, and the phase of the recording window (see
/// `trace_selection`).
#[repr(C)]
struct SharedWords {
    clock: AtomicU64,
    flush_requests: AtomicU64,
    phase: AtomicU64,
    /// Retired instructions of all threads, and their number at the start of the window.
    retired: AtomicU64,
    retired_at_start: AtomicU64,
}

pub(crate) struct SharedClock {
    words: &'static SharedWords,
    /// Instructions after which the TSC has certainly advanced.
    pub(crate) tsc_tick: u64,
}

impl SharedClock {
    pub(crate) fn open(path: &Path, tsc_tick: u64) -> io::Result<SharedClock> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let size = std::mem::size_of::<SharedWords>();
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
            &*at.cast::<SharedWords>()
        };
        Ok(SharedClock { words, tsc_tick })
    }

    pub(crate) fn latest(&self) -> u64 {
        self.words.clock.load(Ordering::SeqCst)
    }

    pub(crate) fn publish(&self, clock: u64) {
        self.words.clock.fetch_max(clock, Ordering::SeqCst);
    }

    /// Returns a number that grows when the recorder wants threads to send what they hold back.
    pub(crate) fn flush_requests(&self) -> u64 {
        self.words.flush_requests.load(Ordering::Relaxed) >> 1
    }

    /// Returns whether the recorder takes no more packets.
    pub(crate) fn is_full(&self) -> bool {
        self.words.flush_requests.load(Ordering::Relaxed) & 1 == 1
    }

    pub(crate) fn phase(&self) -> u64 {
        self.words.phase.load(Ordering::SeqCst)
    }

    /// Ends the phase `more` instructions after those that have been counted. False if another thread has ended it.
    pub(crate) fn leave_phase(&self, phase: u64, more: u64) -> bool {
        let words = self.words;
        let retired = words.retired.load(Ordering::SeqCst) + more;
        let order = Ordering::SeqCst;
        if phase == 0 {
            // The first value counts; the phase is published after it.
            let _ = words
                .retired_at_start
                .compare_exchange(0, retired, order, order);
        }
        let next = phase + 1;
        let left = words.phase.compare_exchange(phase, next, order, order);
        left.is_ok() || phase == 1 && words.phase.swap(next, order) == 0
    }

    pub(crate) fn retired_at_start(&self) -> u64 {
        self.words.retired_at_start.load(Ordering::SeqCst)
    }

    /// Adds retired instructions and returns the total.
    pub(crate) fn add_retired(&self, more: u64) -> u64 {
        self.words.retired.fetch_add(more, Ordering::SeqCst) + more
    }
}
