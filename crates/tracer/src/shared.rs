//! What the handle on a traced program and the tracing thread share.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use libc::pid_t;

use crate::stream::Stream;
use crate::sys;

pub(crate) struct Shared {
    pub(crate) stream: Stream,
    pub(crate) retired: AtomicU64,
    pub(crate) stops: AtomicU64,
    /// Processes that the process which traces them has.
    pub(crate) elsewhere: AtomicUsize,
    killed: AtomicBool,
    /// The programs ran before they were traced: they are let go instead of killed.
    attached: bool,
    pub(crate) released: AtomicBool,
    processes: Mutex<HashMap<pid_t, Option<OwnedFd>>>,
    pub(crate) started: Instant,
    ended: Mutex<Option<Instant>>,
}

impl Shared {
    pub(crate) fn new(attached: bool) -> Shared {
        Shared {
            stream: Stream::default(),
            retired: AtomicU64::new(0),
            stops: AtomicU64::new(0),
            elsewhere: AtomicUsize::new(0),
            killed: AtomicBool::new(false),
            attached,
            released: AtomicBool::new(false),
            processes: Mutex::default(),
            started: Instant::now(),
            ended: Mutex::new(None),
        }
    }

    fn processes(&self) -> MutexGuard<'_, HashMap<pid_t, Option<OwnedFd>>> {
        self.processes
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a process that has not been waited for: its number is its own as long as it is here.
    pub(crate) fn add(&self, pid: pid_t) {
        let fd = sys::pidfd_open(pid).ok();
        self.processes().entry(pid).or_insert(fd);
    }

    /// The process has ended.
    pub(crate) fn remove(&self, pid: pid_t) {
        self.processes().remove(&pid);
    }

    /// Sends a signal to one process; ESRCH if it has ended.
    pub(crate) fn signal(&self, pid: pid_t, signal: i32) -> io::Result<()> {
        match self.processes().get(&pid) {
            Some(Some(fd)) => sys::pidfd_signal(fd, signal),
            // SAFETY: no pointers.
            Some(None) => match unsafe { libc::kill(pid, signal) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            },
            None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// How many processes exist.
    pub(crate) fn living(&self) -> usize {
        self.processes().len() + self.elsewhere.load(Ordering::Relaxed)
    }

    /// Kills every process. The tracing thread does the same to those that appear later. Programs that were attached to
    /// are let go by the tracing thread instead.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::SeqCst);
        if self.attached {
            return;
        }
        let pids: Vec<pid_t> = self.processes().keys().copied().collect();
        for pid in pids {
            // It may have ended meanwhile.
            let _ = self.signal(pid, libc::SIGKILL);
        }
    }

    /// Everything runs on untraced from its next stop on.
    pub(crate) fn released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    pub(crate) fn killed(&self) -> bool {
        self.killed.load(Ordering::SeqCst)
    }

    /// When the tracing thread ended.
    pub(crate) fn ended(&self) -> MutexGuard<'_, Option<Instant>> {
        self.ended
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
