//! The callbacks as version 7 of the plugin interface calls them: without the plugin's id, with data of their own.

use std::ffi::c_void;

use crate::callbacks::{syscalls, translation};
use crate::interface::api::Translated;

/// Nobody looks at the id.
const ID: u64 = 0;

pub(crate) extern "C" fn translated(tb: *mut Translated, _data: *mut c_void) {
    translation::translated(ID, tb);
}

#[allow(clippy::too_many_arguments)] // QEMU's signature
pub(crate) extern "C" fn entered(
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
    syscalls::entered(ID, vcpu, number, a1, a2, a3, a4, a5, a6, a7, a8);
}

pub(crate) extern "C" fn returned(vcpu: u32, number: i64, result: i64, _data: *mut c_void) {
    syscalls::returned(ID, vcpu, number, result);
}
