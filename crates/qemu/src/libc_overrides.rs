//! Functions of the C library that QEMU calls here, because this library is preloaded.

use std::ffi::{c_char, c_int, CStr};

use crate::process::lifecycle;
use crate::shared::{config, shared_state};

const PATH_MAX: usize = 4096;

/// Records the end of a process before QEMU kills it: QEMU ends a process by a signal without handler with `kill` on
/// itself. Other calls go to the kernel unchanged.
///
/// # Safety
/// As kill(2).
#[no_mangle]
pub unsafe extern "C" fn kill(pid: libc::pid_t, signal: c_int) -> c_int {
    let thread = shared_state::current_thread();
    if !thread.is_null()
        && pid == libc::getpid()
        && !matches!(signal, 0 | libc::SIGSTOP | libc::SIGCONT)
    {
        lifecycle::end_by_signal(thread, signal);
    }
    libc::syscall(libc::SYS_kill, pid, signal) as c_int
}

/// Keeps the program's variables from QEMU. QEMU reads `QEMU_*` as options, and its libraries read others; QEMU sees
/// only those that the recorder set for it.
///
/// # Safety
/// As getenv(3).
#[no_mangle]
pub unsafe extern "C" fn getenv(name: *const c_char) -> *mut c_char {
    config::getenv_for_qemu(CStr::from_ptr(name).to_bytes())
}

/// Resolves the path of a program without a name to the name that it had, as the kernel does. QEMU calls this to answer
/// readlink of `/proc/self/exe`.
///
/// # Safety
/// As realpath(3).
#[no_mangle]
pub unsafe extern "C" fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    match config::program_name_of_fd(CStr::from_ptr(path).to_bytes()) {
        Some(name) => copy_path(&name, resolved),
        None => call_libc_realpath(path, resolved),
    }
}

/// Replaces the variant of realpath that compilers insert where the size of the buffer is known.
///
/// # Safety
/// As realpath(3).
#[no_mangle]
pub unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    resolved: *mut c_char,
    size: usize,
) -> *mut c_char {
    if size < PATH_MAX {
        libc::abort();
    }
    realpath(path, resolved)
}

unsafe fn call_libc_realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    type Function = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char;
    let next = libc::dlsym(libc::RTLD_NEXT, c"realpath".as_ptr());
    match std::mem::transmute::<*mut libc::c_void, Option<Function>>(next) {
        Some(function) => function(path, resolved),
        None => std::ptr::null_mut(),
    }
}

unsafe fn copy_path(name: &CStr, resolved: *mut c_char) -> *mut c_char {
    if resolved.is_null() {
        return libc::strdup(name.as_ptr());
    }
    if name.to_bytes().len() >= PATH_MAX {
        return std::ptr::null_mut();
    }
    libc::strcpy(resolved, name.as_ptr())
}
