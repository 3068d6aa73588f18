//! Functions of the C library that QEMU gets from here, as this library is preloaded.

use std::ffi::{c_char, c_int, CStr};

use crate::process::ending;
use crate::shared::{environment, threads};

const PATH_MAX: usize = 4096;

/// QEMU ends a process by a signal that has no handler with `kill` on itself. Everybody else gets the system call.
///
/// # Safety
/// As kill(2).
#[no_mangle]
pub unsafe extern "C" fn kill(pid: libc::pid_t, signal: c_int) -> c_int {
    let thread = threads::current();
    if !thread.is_null()
        && pid == libc::getpid()
        && !matches!(signal, 0 | libc::SIGSTOP | libc::SIGCONT)
    {
        ending::killed(thread, signal);
    }
    libc::syscall(libc::SYS_kill, pid, signal) as c_int
}

/// QEMU reads `QEMU_*` variables as options, and its libraries read others. Those in the environment are the program's:
/// QEMU gets only the ones that the recorder gives it.
///
/// # Safety
/// As getenv(3).
#[no_mangle]
pub unsafe extern "C" fn getenv(name: *const c_char) -> *mut c_char {
    environment::value_for_qemu(CStr::from_ptr(name).to_bytes())
}

/// QEMU asks for its program's name to answer readlink of `/proc/self/exe`. The path of a program that has no name
/// leads nowhere: this returns the name that it had, as the kernel does.
///
/// # Safety
/// As realpath(3).
#[no_mangle]
pub unsafe extern "C" fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    match environment::name_of_held(CStr::from_ptr(path).to_bytes()) {
        Some(name) => copy(&name, resolved),
        None => next_realpath(path, resolved),
    }
}

/// Compilers replace realpath by this where they know the size of the buffer.
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

unsafe fn next_realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    type Function = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char;
    let next = libc::dlsym(libc::RTLD_NEXT, c"realpath".as_ptr());
    match std::mem::transmute::<*mut libc::c_void, Option<Function>>(next) {
        Some(function) => function(path, resolved),
        None => std::ptr::null_mut(),
    }
}

unsafe fn copy(name: &CStr, resolved: *mut c_char) -> *mut c_char {
    if resolved.is_null() {
        return libc::strdup(name.as_ptr());
    }
    if name.to_bytes().len() >= PATH_MAX {
        return std::ptr::null_mut();
    }
    libc::strcpy(resolved, name.as_ptr())
}
