//! The functions of QEMU's plugin interface that this plugin uses. No Rust package declares them.
//!
//! They are looked up in the QEMU process. Which ones exist decides the version of the interface that the plugin asks
//! for: 1 (QEMU up to 8.2), 2 (from 9.0 on; accepted until 11.0) or 7 (from 11.1 on, which accepts nothing older). QEMU
//! passes its own version when it installs the plugin. Since version 3 QEMU copies the bytes of an instruction out;
//! since version 7 callbacks get user data in place of the plugin's id.
//!
//! Discontinuity callbacks, which QEMU has from 10.2 on, are used for whole systems only; their behaviour in user mode
//! has not been tested.

use std::ffi::{c_char, c_int, c_void, CStr};

pub(crate) type PluginId = u64;

#[repr(C)]
pub(crate) struct PluginTb {
    opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct PluginInsn {
    opaque: [u8; 0],
}

/// Arguments: vCPU index, and the data registered with the callback.
pub(crate) type OnExecution = unsafe extern "C" fn(u32, *mut c_void);

/// The functions that QEMU calls for the whole plugin.
pub(crate) struct PluginCallbacks {
    pub(crate) translation: *const c_void,
    pub(crate) syscall: *const c_void,
    pub(crate) syscall_return: *const c_void,
}

/// The functions that QEMU calls for a whole system.
pub(crate) struct SystemPluginCallbacks {
    pub(crate) translation: *const c_void,
    /// An interrupt or exception has changed the address at which a vCPU runs.
    pub(crate) discontinuity: *const c_void,
    /// Uses no argument.
    pub(crate) exit: *const c_void,
}

/// QEMU_PLUGIN_DISCON_INTERRUPT and QEMU_PLUGIN_DISCON_EXCEPTION.
const INTERRUPTS_AND_EXCEPTIONS: c_int = 3;

/// QEMU_PLUGIN_CB_NO_REGS: the callback leaves the guest's registers alone.
const NO_REGISTERS: c_int = 0;

type InsnDataPointer = unsafe extern "C" fn(*const PluginInsn) -> *const u8;
type InsnDataCopy = unsafe extern "C" fn(*const PluginInsn, *mut c_void, usize) -> usize;

enum InsnData {
    Pointer(InsnDataPointer),
    Copy(InsnDataCopy),
}

/// Registers a callback for the whole plugin. Arguments: the plugin's id, the callback, and from version 7 on its data.
type Register = unsafe extern "C" fn(PluginId, *const c_void, *mut c_void);

/// Registers a callback for discontinuities of some types. Arguments otherwise as those of `Register`.
type RegisterDiscontinuity = unsafe extern "C" fn(PluginId, c_int, *const c_void, *mut c_void);

/// The functions of the running QEMU.
pub(crate) struct PluginApi {
    tb_n_insns: unsafe extern "C" fn(*const PluginTb) -> usize,
    tb_vaddr: unsafe extern "C" fn(*const PluginTb) -> u64,
    tb_get_insn: unsafe extern "C" fn(*const PluginTb, usize) -> *mut PluginInsn,
    insn_size: unsafe extern "C" fn(*const PluginInsn) -> usize,
    insn_data: InsnData,
    on_translation: Register,
    on_syscall: Register,
    on_syscall_return: Register,
    on_exit: Register,
    /// None before QEMU 10.2.
    on_discontinuity: Option<RegisterDiscontinuity>,
    callbacks_get_data: bool,
    on_tb: unsafe extern "C" fn(*mut PluginTb, OnExecution, c_int, *mut c_void),
    on_insn: unsafe extern "C" fn(*mut PluginInsn, OnExecution, c_int, *mut c_void),
}

/// Returns the interface version to ask for.
pub(crate) fn requested_api_version() -> c_int {
    if has_symbol(c"qemu_plugin_set_pc") {
        7
    } else if has_symbol(c"qemu_plugin_scoreboard_new") {
        2
    } else {
        1
    }
}

impl PluginApi {
    /// Looks up all functions for a QEMU of interface version `current`; fails with the name of the first missing one.
    pub(crate) fn load_functions(current: c_int) -> Result<PluginApi, &'static str> {
        // SAFETY: the types are those of the interface at that version.
        unsafe {
            Ok(PluginApi {
                tb_n_insns: load_function(c"qemu_plugin_tb_n_insns")?,
                tb_vaddr: load_function(c"qemu_plugin_tb_vaddr")?,
                tb_get_insn: load_function(c"qemu_plugin_tb_get_insn")?,
                insn_size: load_function(c"qemu_plugin_insn_size")?,
                insn_data: if current < 3 {
                    InsnData::Pointer(load_function(c"qemu_plugin_insn_data")?)
                } else {
                    InsnData::Copy(load_function(c"qemu_plugin_insn_data")?)
                },
                on_translation: load_function(c"qemu_plugin_register_vcpu_tb_trans_cb")?,
                on_syscall: load_function(c"qemu_plugin_register_vcpu_syscall_cb")?,
                on_syscall_return: load_function(c"qemu_plugin_register_vcpu_syscall_ret_cb")?,
                on_exit: load_function(c"qemu_plugin_register_atexit_cb")?,
                on_discontinuity: load_function(c"qemu_plugin_register_vcpu_discon_cb").ok(),
                callbacks_get_data: current >= 7,
                on_tb: load_function(c"qemu_plugin_register_vcpu_tb_exec_cb")?,
                on_insn: load_function(c"qemu_plugin_register_vcpu_insn_exec_cb")?,
            })
        }
    }

    /// Registers callbacks: `plain` have the signatures of versions up to 6, `with_data` those of version 7.
    pub(crate) fn register_callbacks(
        &self,
        id: PluginId,
        plain: &PluginCallbacks,
        with_data: &PluginCallbacks,
    ) {
        let callbacks = if self.callbacks_get_data {
            with_data
        } else {
            plain
        };
        let data = std::ptr::null_mut();
        // SAFETY: called from qemu_plugin_install with its id; callbacks have the signatures of this version. An older
        // QEMU does not look at the third argument.
        unsafe {
            (self.on_translation)(id, callbacks.translation, data);
            (self.on_syscall)(id, callbacks.syscall, data);
            (self.on_syscall_return)(id, callbacks.syscall_return, data);
        }
    }

    /// Registers the callbacks of a whole system: `plain` or `with_data` as for `register_callbacks`.
    pub(crate) fn register_system_callbacks(
        &self,
        id: PluginId,
        plain: &SystemPluginCallbacks,
        with_data: &SystemPluginCallbacks,
    ) {
        let callbacks = if self.callbacks_get_data {
            with_data
        } else {
            plain
        };
        let data = std::ptr::null_mut();
        // SAFETY: `id` is that of this plugin, and callbacks have the signatures of this version.
        unsafe {
            (self.on_translation)(id, callbacks.translation, data);
            (self.on_exit)(id, callbacks.exit, data);
            if let Some(register) = self.on_discontinuity {
                register(id, INTERRUPTS_AND_EXCEPTIONS, callbacks.discontinuity, data);
            }
        }
    }

    /// Address and number of instructions of a translation block.
    ///
    /// # Safety
    /// `tb` is that of a running translation callback; so for all that follows.
    pub(crate) unsafe fn block_start_and_count(&self, tb: *const PluginTb) -> (u64, usize) {
        ((self.tb_vaddr)(tb), (self.tb_n_insns)(tb))
    }

    pub(crate) unsafe fn instruction_at(
        &self,
        tb: *const PluginTb,
        index: usize,
    ) -> *mut PluginInsn {
        (self.tb_get_insn)(tb, index)
    }

    pub(crate) unsafe fn instruction_size(&self, instruction: *const PluginInsn) -> usize {
        (self.insn_size)(instruction)
    }

    /// Appends the bytes of the instruction to `into`.
    pub(crate) unsafe fn append_instruction_bytes(
        &self,
        instruction: *const PluginInsn,
        into: &mut Vec<u8>,
    ) {
        let size = (self.insn_size)(instruction).min(16);
        match self.insn_data {
            InsnData::Pointer(data) => {
                into.extend_from_slice(std::slice::from_raw_parts(data(instruction), size));
            }
            InsnData::Copy(data) => {
                let mut bytes = [0u8; 16];
                let size = data(instruction, bytes.as_mut_ptr().cast(), size).min(16);
                into.extend_from_slice(&bytes[..size]);
            }
        }
    }

    pub(crate) unsafe fn call_when_block_starts(
        &self,
        tb: *mut PluginTb,
        call: OnExecution,
        with: *mut c_void,
    ) {
        (self.on_tb)(tb, call, NO_REGISTERS, with);
    }

    pub(crate) unsafe fn call_before_instruction(
        &self,
        instruction: *mut PluginInsn,
        call: OnExecution,
        with: *mut c_void,
    ) {
        (self.on_insn)(instruction, call, NO_REGISTERS, with);
    }
}

fn find_symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends with NUL.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr() as *const c_char) }
}

fn has_symbol(name: &CStr) -> bool {
    !find_symbol(name).is_null()
}

/// # Safety
/// `F` is the type of the function called `name`.
unsafe fn load_function<F: Copy>(name: &'static CStr) -> Result<F, &'static str> {
    let address = find_symbol(name);
    if address.is_null() || std::mem::size_of::<F>() != std::mem::size_of::<*mut c_void>() {
        return Err(name.to_str().unwrap_or("a function"));
    }
    Ok(std::mem::transmute_copy(&address))
}
