//! Settings of the whole process, for the `rtit` command alone: importing the module sets none of them.

use pyo3::prelude::*;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(return_freed_memory, module)?)?;
    module.add_function(wrap_pyfunction!(read_truncated_maps_as_zeros, module)?)
}

/// Bytes of a block that goes back to the system when it is freed. Smaller columns and buffers are mostly used again.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: libc::c_int = 1 << 20;

/// Makes malloc return large blocks to the system when they are freed. By default glibc keeps up to 32 MB of each size.
#[pyfunction]
fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt sets a number.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE)
    };
}

/// Makes pages of a mapped file read as zeros once the file has been truncated. By default SIGBUS kills the process.
///
/// The reader must check the size of the file afterwards.
#[pyfunction]
fn read_truncated_maps_as_zeros() {
    #[cfg(target_os = "linux")]
    // SAFETY: all zeros are a valid sigaction, and the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

/// Maps a page of zeros over the one that faulted. Any other SIGBUS gets the default action, which ends the process.
#[cfg(target_os = "linux")]
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the kernel passes a valid siginfo. A page that faults with BUS_ADRERR has no contents to lose. sysconf,
    // mmap and signal are system calls or read a constant, and errno is restored.
    unsafe {
        let errno = *libc::__errno_location();
        let size = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let address = (*info).si_addr() as usize;
        let page = (address - address % size) as *mut libc::c_void;
        let is_mapped = (*info).si_code == libc::BUS_ADRERR
            && libc::mmap(page, size, libc::PROT_READ, flags, -1, 0) != libc::MAP_FAILED;
        if !is_mapped {
            // a fault comes again when the instruction is repeated; a signal that a process sent does not
            libc::signal(signal, libc::SIG_DFL);
            if (*info).si_code <= 0 {
                libc::raise(signal);
            }
        }
        *libc::__errno_location() = errno;
    }
}
