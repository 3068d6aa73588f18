//! The callbacks with the signatures of version 7 of the plugin interface: user data in place of the plugin's id.

use std::ffi::c_void;

use crate::callbacks::{block_translation, syscalls};
use crate::interface::plugin_api::PluginTb;

/// The callbacks do not use the id.
const ID: u64 = 0;

pub(crate) extern "C" fn on_translation(tb: *mut PluginTb, _data: *mut c_void) {
    block_translation::on_translation(ID, tb);
}

#[allow(clippy::too_many_arguments)] // QEMU's signature
pub(crate) extern "C" fn on_syscall(
    vcpu: u32,
    number: i64,
    a1: u64,
    a2: u64,
    a3: u64,
    a4: u64,
    a5: u64,
    a6: u64,
    a7: u64,
    a8: u64,
    _data: *mut c_void,
) {
    syscalls::on_syscall(ID, vcpu, number, a1, a2, a3, a4, a5, a6, a7, a8);
}

pub(crate) extern "C" fn on_syscall_return(
    vcpu: u32,
    number: i64,
    result: i64,
    _data: *mut c_void,
) {
    syscalls::on_syscall_return(ID, vcpu, number, result);
}
