//! Kills the process when its recorder dies, as a traced program dies with its tracer.
//!
//! A thread that sends notices a dead recorder itself, but one that waits in the kernel would wait on. The recorder
//! therefore holds a named pipe open for writing. Each process holds it open for reading and has asked for SIGKILL on
//! any event of it (F_SETSIG). Nothing is ever written, so the event is the end of the last writer.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::shared::hidden_descriptor::HiddenDescriptor;

const NAME: &str = "alive";
const F_SETSIG: c_int = 10;

pub(crate) static LIFELINE: HiddenDescriptor = HiddenDescriptor::none();
/// Identifies the pipe: the program may have closed it and reused its number.
static INODE: AtomicU64 = AtomicU64::new(0);

/// Ties the process to the recorder of `folder`. A failure is ignored: the recording works without it.
pub(crate) fn hold_lifeline(folder: &Path) {
    let Ok(path) = CString::new(folder.join(NAME).as_os_str().as_bytes()) else {
        return;
    };
    // SAFETY: calls on a path that ends with NUL and on files of our own.
    unsafe {
        let inherited = LIFELINE.release();
        if inherited >= 0 && inode(inherited) == Some(INODE.load(Ordering::Relaxed)) {
            libc::close(inherited);
        }
        let file = libc::open(
            path.as_ptr(),
            libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC,
        );
        if file < 0 {
            return;
        }
        LIFELINE.adopt(file);
        let file = LIFELINE.get();
        INODE.store(inode(file).unwrap_or(0), Ordering::Relaxed);
        libc::fcntl(file, libc::F_SETOWN, libc::getpid());
        libc::fcntl(file, F_SETSIG, libc::SIGKILL);
        libc::fcntl(file, libc::F_SETFL, libc::O_NONBLOCK | libc::O_ASYNC);
    }
}

fn inode(file: c_int) -> Option<u64> {
    // SAFETY: fills in a value of our own.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        (libc::fstat(file, &mut found) == 0).then_some(found.st_ino)
    }
}
