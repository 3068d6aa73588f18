//! A QEMU plugin that makes a program under qemu-x86_64 drive Intel PT trace units, one a thread.
//!
//! QEMU loads this library twice over: first as a preloaded library, so that the guest's environment can be put right
//! before `main` and some functions of the C library replaced (`replaced`); then as the plugin. Packets and sideband go to the
//! recorder over a socket.
//!
//! Where to start reading: `callbacks` (what QEMU calls), then down. Each folder uses those below it alone:
//!
//! * `replaced`: functions of the C library that QEMU gets from here;
//! * `callbacks`: a block runs (`callbacks::execution`, the hot path), a block is translated, a system call;
//! * `process`: the life of the process and its threads: start, fork, execve, end;
//! * `events`: what happens to a thread among others: user code's borders, edges of the recording, sending;
//! * `shared`: what the threads share, and the process with the recorder: settings, code bytes, clock, messages;
//! * `thread`: a thread's path and its trace unit, by itself: blocks in, packets and truth out;
//! * `interface`: QEMU's plugin functions, its CPU state, the program's memory.

mod callbacks;
mod events;
mod failure;
mod interface;
mod process;
mod replaced;
mod shared;
mod thread;

use std::ffi::{c_char, c_int, CStr};

use callbacks::{syscalls, translation, with_data};
use failure::complain;
use interface::{api, ignored};
use process::start;
use shared::config::Config;
use shared::environment;

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
    ignored::inherit();
    environment::take_environment();
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
    let shared = start::start(api, Config::load()?)?;
    let plain = api::Plain {
        translation: translation::translated,
        syscall: syscalls::entered,
        syscall_return: syscalls::returned,
    };
    let with_data = api::WithData {
        translation: with_data::translated,
        syscall: with_data::entered,
        syscall_return: with_data::returned,
    };
    shared.api.register(id, &plain, &with_data);
    Ok(())
}
