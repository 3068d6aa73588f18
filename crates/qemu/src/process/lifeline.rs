//! The process does not outlive the recorder, as a ptraced program does not outlive its tracer.
//!
//! What sends will notice by itself; what waits in the kernel would wait on. The recorder holds a named pipe open for
//! writing. Each process holds it open for reading and has asked for SIGKILL when something happens to it: nothing is
//! ever written, so that is when the last writer is gone.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::c_int;

const NAME: &str = "alive";
/// Programs rarely reach for files with numbers from here on.
const HIGH: c_int = 910;
const F_SETSIG: c_int = 10;

static FILE: AtomicI32 = AtomicI32::new(-1);
/// What the file is: the program may have closed it and use its number.
static INODE: AtomicU64 = AtomicU64::new(0);

/// Ties the calling process to the recorder whose folder it is. Not having it is no reason not to run.
pub(crate) fn hold(folder: &Path) {
    let Ok(path) = CString::new(folder.join(NAME).as_os_str().as_bytes()) else {
        return;
    };
    // SAFETY: calls on a path that ends with NUL and on files of our own.
    unsafe {
        let inherited = FILE.swap(-1, Ordering::Relaxed);
        if inherited >= 0 && inode(inherited) == Some(INODE.load(Ordering::Relaxed)) {
            libc::close(inherited);
        }
        let low = libc::open(
            path.as_ptr(),
            libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC,
        );
        if low < 0 {
            return;
        }
        let mut file = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, HIGH);
        if file < 0 {
            file = low;
        } else {
            libc::close(low);
        }
        FILE.store(file, Ordering::Relaxed);
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
