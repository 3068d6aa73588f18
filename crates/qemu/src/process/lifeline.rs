//! The process does not outlive the recorder, as a ptraced program does not outlive its tracer.
//!
//! What sends will notice by itself; what waits in the kernel would wait on. The recorder holds a named pipe open for
//! writing. Each process holds it open for reading and has asked for SIGKILL when something happens to it: nothing is
//! ever written, so that is when the last writer is gone.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::shared::descriptor::Descriptor;

const NAME: &str = "alive";
const F_SETSIG: c_int = 10;

pub(crate) static FILE: Descriptor = Descriptor::none();
/// What the file is: the program may have closed it and use its number.
static INODE: AtomicU64 = AtomicU64::new(0);

/// Ties the calling process to the recorder whose folder it is. Not having it is no reason not to run.
pub(crate) fn hold(folder: &Path) {
    let Ok(path) = CString::new(folder.join(NAME).as_os_str().as_bytes()) else {
        return;
    };
    // SAFETY: calls on a path that ends with NUL and on files of our own.
    unsafe {
        let inherited = FILE.take();
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
        FILE.set(file);
        let file = FILE.get();
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
