//! A page that the recorder and all recorded processes map: the latest clock that any thread has published, and what
//! the recorder asks for.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct SharedClock {
    page: &'static [AtomicU64; 2],
    /// Instructions after which the TSC has surely gone on.
    pub(crate) tick: u64,
}

impl SharedClock {
    pub(crate) fn open(path: &Path, tick: u64) -> io::Result<SharedClock> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let size = std::mem::size_of::<[AtomicU64; 2]>();
        if file.metadata()?.len() < size as u64 {
            return Err(io::Error::other("the clock's file is too short"));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that is long enough; it is never unmapped, and page aligned.
        let page = unsafe {
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
            &*at.cast::<[AtomicU64; 2]>()
        };
        Ok(SharedClock { page, tick })
    }

    pub(crate) fn latest(&self) -> u64 {
        self.page[0].load(Ordering::SeqCst)
    }

    pub(crate) fn publish(&self, clock: u64) {
        self.page[0].fetch_max(clock, Ordering::SeqCst);
    }

    /// Goes up when the recorder wants to have what threads hold back.
    pub(crate) fn asked(&self) -> u64 {
        self.page[1].load(Ordering::Relaxed) >> 1
    }

    /// The recorder takes no more packets.
    pub(crate) fn full(&self) -> bool {
        self.page[1].load(Ordering::Relaxed) & 1 == 1
    }
}
