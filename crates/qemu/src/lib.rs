//! A QEMU plugin that records a program: each thread of the program drives an Intel PT trace unit of its own. In QEMU's
//! system emulation it records the whole system (`system`).
//!
//! QEMU loads this library twice. The dynamic linker preloads it, so that its constructor can restore the program's
//! environment before `main` and its exported functions can replace some of the C library (`libc_overrides`). QEMU then
//! loads it as a plugin (`qemu_plugin_install`). Packets and sideband go to the recorder over a socket.
//!
//! The path of an executed block, which is most of what the plugin does:
//!
//! 1. QEMU translates a block. `callbacks::blocks` describes it as a `TranslationBlock`: its instructions, how it ends,
//!    where it can lead. `shared::block_registry` sends the recorder code that it does not have yet.
//! 2. The block runs. Its callback either follows the block at once, appends its number to a ring
//!    (`shared::block_ring`) from which a second thread follows it, or counts it.
//! 3. To follow a block is to report to the trace unit how the last block led to this one: `thread::block_transitions`.
//!    The first block after anything else (a signal, a system call, a new thread) takes the general path,
//!    `process::lifecycle`.
//! 4. `thread_events` sends packets and executed path from time to time.
//!
//! Each folder uses only the ones below it: `callbacks` and `libc_overrides`; `process`; `thread_events`; `shared`;
//! `thread`; `interface`; `fatal_error`.

mod callbacks;
mod fatal_error;
mod interface;
mod libc_overrides;
mod process;
mod shared;
mod system;
mod thread;
mod thread_events;

use std::ffi::{c_char, c_int, c_void, CStr};

use callbacks::syscalls::with_data;
use callbacks::{blocks, syscalls};
use fatal_error::print_error;
use interface::plugin_api::{self, PluginCallbacks};
use interface::signals;
use process::lifecycle;
use shared::config::{self, RecordingConfig};

/// The version of the plugin interface that the plugin asks for. QEMU reads it; the constructor sets it.
#[no_mangle]
#[allow(non_upper_case_globals)] // QEMU's name
pub static mut qemu_plugin_version: c_int = 1;

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn() = run_before_main;

extern "C" fn run_before_main() {
    // SAFETY: before main, in the only thread.
    unsafe { qemu_plugin_version = plugin_api::requested_api_version() };
    signals::record_inherited_ignores();
    config::take_recorder_variables();
}

/// The beginning of QEMU's qemu_info_t.
#[repr(C)]
pub struct QemuInfo {
    target: *const c_char,
    _minimum: c_int,
    current: c_int,
    is_system: bool,
    /// Of a whole system.
    processors: c_int,
}

/// Installs the plugin before the program starts. Any result but 0 makes QEMU exit.
///
/// # Safety
/// QEMU calls it once, with a valid `info`.
#[no_mangle]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const QemuInfo,
    _argc: c_int,
    _argv: *const *const c_char,
) -> c_int {
    match install_plugin(id, &*info) {
        Ok(()) => 0,
        Err(problem) => {
            print_error(&problem);
            1
        }
    }
}

unsafe fn install_plugin(id: u64, info: &QemuInfo) -> Result<(), String> {
    if CStr::from_ptr(info.target).to_bytes() != b"x86_64" {
        return Err("the plugin is for qemu-x86_64 and qemu-system-x86_64".to_string());
    }
    let api = plugin_api::PluginApi::load_functions(info.current)
        .map_err(|name| format!("this QEMU has no {name}"))?;
    if info.is_system {
        return system::install_system_plugin(api, id, info.processors);
    }
    let shared = lifecycle::start_process(api, RecordingConfig::load_settings()?)?;
    let plain = PluginCallbacks {
        translation: blocks::on_translation as *const c_void,
        syscall: syscalls::on_syscall as *const c_void,
        syscall_return: syscalls::on_syscall_return as *const c_void,
    };
    let with_data = PluginCallbacks {
        translation: with_data::on_translation as *const c_void,
        syscall: with_data::on_syscall as *const c_void,
        syscall_return: with_data::on_syscall_return as *const c_void,
    };
    shared.api.register_callbacks(id, &plain, &with_data);
    Ok(())
}
