//! A QEMU plugin that makes a program under qemu-x86_64 drive Intel PT trace units, one a thread.
//!
//! QEMU loads this library twice over: first as a preloaded library, so that the guest's environment can be put right
//! before `main` and the end of a process by a signal is seen; then as the plugin. Packets and sideband go to the
//! recorder over a socket.
//!
//! Where to start reading: `engine` (what QEMU calls), `thread` (from blocks to packets: `thread::quiet` for nearly all
//! blocks, `thread::blocks` for those that make packets, `thread::leaving` out of user code, `thread::sending`), `process`
//! (what threads share: `process::threads`, `process::code` and its sideband, `process::ending`), `syscalls`, `signals`,
//! `follow` (execve), `space` (code bytes), `link` (messages).

mod api;
mod block;
mod clock;
mod config;
mod cpu;
mod defaults;
mod elf;
mod engine;
mod follow;
mod lifeline;
mod link;
mod memory;
mod privilege;
mod process;
mod ranges;
mod signals;
mod space;
mod stack;
mod syscalls;
mod thread;
mod truth;
mod window;
mod with_data;

use std::ffi::{c_char, c_int, CStr};

/// The version of the plugin interface that we speak: the constructor sets it to what the QEMU at hand does.
#[no_mangle]
#[allow(non_upper_case_globals)] // QEMU's name
pub static mut qemu_plugin_version: c_int = 1;

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    // SAFETY: before main, in the only thread.
    unsafe { qemu_plugin_version = api::version() };
    config::take_environment();
}

/// The beginning of QEMU's qemu_info_t.
#[repr(C)]
pub struct Info {
    target: *const c_char,
    _minimum: c_int,
    current: c_int,
    system: bool,
}

/// Called by QEMU before the program starts. Anything but 0 makes QEMU give up.
///
/// # Safety
/// QEMU calls it once, with its own id and facts.
#[no_mangle]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const Info,
    _argc: c_int,
    _argv: *const *const c_char,
) -> c_int {
    match install(id, &*info) {
        Ok(()) => 0,
        Err(problem) => {
            complain(&problem);
            1
        }
    }
}

unsafe fn install(id: u64, info: &Info) -> Result<(), String> {
    if info.system || CStr::from_ptr(info.target).to_bytes() != b"x86_64" {
        return Err("the plugin is for qemu-x86_64, QEMU's user mode".to_string());
    }
    let api = api::Api::load(info.current).map_err(|name| format!("this QEMU has no {name}"))?;
    process::start(api, config::Config::load()?)?;
    let plain = api::Plain {
        translation: engine::translated,
        syscall: syscalls::entered,
        syscall_return: syscalls::returned,
    };
    let with_data = api::WithData {
        translation: with_data::translated,
        syscall: with_data::entered,
        syscall_return: with_data::returned,
    };
    process::process().api.register(id, &plain, &with_data);
    Ok(())
}

/// QEMU ends a process by a signal that has no handler with `kill` on itself. Everybody else gets the system call.
///
/// # Safety
/// As kill(2).
#[no_mangle]
pub unsafe extern "C" fn kill(pid: libc::pid_t, signal: c_int) -> c_int {
    let thread = process::current();
    if !thread.is_null()
        && pid == libc::getpid()
        && !matches!(signal, 0 | libc::SIGSTOP | libc::SIGCONT)
    {
        process::process().killed(&mut *thread, signal);
    }
    libc::syscall(libc::SYS_kill, pid, signal) as c_int
}

/// Ends the process in one sentence.
#[cold]
#[inline(never)]
fn die(problem: &str) -> ! {
    complain(problem);
    // SAFETY: ends the process; the recorder sees that its socket is closed.
    unsafe { libc::_exit(125) }
}

fn complain(problem: &str) {
    let text = format!("rtit: {problem}\n");
    // SAFETY: writes bytes that are there.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}
