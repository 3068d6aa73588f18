//! The latest clock that any recorded thread has published: one word in a file that all recorded processes map.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct SharedClock(&'static AtomicU64);

impl SharedClock {
    pub(crate) fn open(path: &Path) -> io::Result<SharedClock> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let size = std::mem::size_of::<AtomicU64>();
        if file.metadata()?.len() < size as u64 {
            return Err(io::Error::other("the clock's file is too short"));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that is long enough; it is never unmapped, and page aligned.
        let word = unsafe {
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
            &*at.cast::<AtomicU64>()
        };
        Ok(SharedClock(word))
    }

    pub(crate) fn latest(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn publish(&self, clock: u64) {
        self.0.fetch_max(clock, Ordering::SeqCst);
    }
}
