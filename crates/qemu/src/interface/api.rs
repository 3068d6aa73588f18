//! The plugin interface of QEMU, as far as it is used here, declared anew: no package has its header.
//!
//! Functions are looked up in the program that loaded us. Which of them are there tells the version that we may ask
//! for: 1 (QEMU up to 8.2), 2 (from 9.0 on, which takes everything down to it until 11.0) or 7 (11.1, which takes
//! nothing older). What QEMU itself speaks it says when it installs us: from 3 on an instruction's bytes are copied
//! out, and from 7 on callbacks lose the plugin's id and get what was registered with them.
//!
//! Discontinuity callbacks (10.2) are not used: what user mode tells by them was not tried.

use std::ffi::{c_char, c_int, c_void, CStr};

pub(crate) type PluginId = u64;

#[repr(C)]
pub(crate) struct Translated {
    opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct Instruction {
    opaque: [u8; 0],
}

pub(crate) type OnTranslation = extern "C" fn(PluginId, *mut Translated);
/// vCPU index, then what was registered with the callback.
pub(crate) type OnExecution = unsafe extern "C" fn(u32, *mut c_void);
pub(crate) type OnSyscall =
    extern "C" fn(PluginId, u32, i64, u64, u64, u64, u64, u64, u64, u64, u64);
pub(crate) type OnSyscallReturn = extern "C" fn(PluginId, u32, i64, i64);

/// What QEMU calls, in the form of versions up to 6 and in that of 7.
pub(crate) struct Callbacks<T, S, R> {
    pub(crate) translation: T,
    pub(crate) syscall: S,
    pub(crate) syscall_return: R,
}

pub(crate) type Plain = Callbacks<OnTranslation, OnSyscall, OnSyscallReturn>;
pub(crate) type WithData = Callbacks<
    extern "C" fn(*mut Translated, *mut c_void),
    extern "C" fn(u32, i64, u64, u64, u64, u64, u64, u64, u64, u64, *mut c_void),
    extern "C" fn(u32, i64, i64, *mut c_void),
>;

/// QEMU_PLUGIN_CB_NO_REGS: the callback leaves the guest's registers alone.
const NO_REGISTERS: c_int = 0;

type InsnDataPointer = unsafe extern "C" fn(*const Instruction) -> *const u8;
type InsnDataCopy = unsafe extern "C" fn(*const Instruction, *mut c_void, usize) -> usize;

enum InsnData {
    Pointer(InsnDataPointer),
    Copy(InsnDataCopy),
}

/// How callbacks of the plugin as a whole are registered: by three functions, each with the id and the callback.
enum Registration {
    Plain(
        Callbacks<
            unsafe extern "C" fn(PluginId, OnTranslation),
            unsafe extern "C" fn(PluginId, OnSyscall),
            unsafe extern "C" fn(PluginId, OnSyscallReturn),
        >,
    ),
    WithData(Callbacks<Register, Register, Register>),
}

type Register = unsafe extern "C" fn(PluginId, *const c_void, *mut c_void);

/// The functions of the QEMU that runs us.
pub(crate) struct Api {
    tb_n_insns: unsafe extern "C" fn(*const Translated) -> usize,
    tb_vaddr: unsafe extern "C" fn(*const Translated) -> u64,
    tb_get_insn: unsafe extern "C" fn(*const Translated, usize) -> *mut Instruction,
    insn_vaddr: unsafe extern "C" fn(*const Instruction) -> u64,
    insn_size: unsafe extern "C" fn(*const Instruction) -> usize,
    insn_data: InsnData,
    registration: Registration,
    on_tb: unsafe extern "C" fn(*mut Translated, OnExecution, c_int, *mut c_void),
    on_insn: unsafe extern "C" fn(*mut Instruction, OnExecution, c_int, *mut c_void),
}

/// The version of the interface to ask for.
pub(crate) fn version() -> c_int {
    if has(c"qemu_plugin_set_pc") {
        7
    } else if has(c"qemu_plugin_scoreboard_new") {
        2
    } else {
        1
    }
}

impl Api {
    /// Looks all functions up for a QEMU that speaks `current`; the name of the first that is missing otherwise.
    pub(crate) fn load(current: c_int) -> Result<Api, &'static str> {
        const TRANSLATION: &CStr = c"qemu_plugin_register_vcpu_tb_trans_cb";
        const SYSCALL: &CStr = c"qemu_plugin_register_vcpu_syscall_cb";
        const SYSCALL_RETURN: &CStr = c"qemu_plugin_register_vcpu_syscall_ret_cb";
        // SAFETY: the types are those of the interface at that version.
        unsafe {
            Ok(Api {
                tb_n_insns: find(c"qemu_plugin_tb_n_insns")?,
                tb_vaddr: find(c"qemu_plugin_tb_vaddr")?,
                tb_get_insn: find(c"qemu_plugin_tb_get_insn")?,
                insn_vaddr: find(c"qemu_plugin_insn_vaddr")?,
                insn_size: find(c"qemu_plugin_insn_size")?,
                insn_data: if current < 3 {
                    InsnData::Pointer(find(c"qemu_plugin_insn_data")?)
                } else {
                    InsnData::Copy(find(c"qemu_plugin_insn_data")?)
                },
                registration: if current < 7 {
                    Registration::Plain(Callbacks {
                        translation: find(TRANSLATION)?,
                        syscall: find(SYSCALL)?,
                        syscall_return: find(SYSCALL_RETURN)?,
                    })
                } else {
                    Registration::WithData(Callbacks {
                        translation: find(TRANSLATION)?,
                        syscall: find(SYSCALL)?,
                        syscall_return: find(SYSCALL_RETURN)?,
                    })
                },
                on_tb: find(c"qemu_plugin_register_vcpu_tb_exec_cb")?,
                on_insn: find(c"qemu_plugin_register_vcpu_insn_exec_cb")?,
            })
        }
    }

    /// Registers that of the two forms which this QEMU calls.
    pub(crate) fn register(&self, id: PluginId, plain: &Plain, with_data: &WithData) {
        // SAFETY: called from qemu_plugin_install with its id; a callback's address in the form that is expected.
        unsafe {
            match &self.registration {
                Registration::Plain(by) => {
                    (by.translation)(id, plain.translation);
                    (by.syscall)(id, plain.syscall);
                    (by.syscall_return)(id, plain.syscall_return);
                }
                Registration::WithData(by) => {
                    let none = std::ptr::null_mut();
                    (by.translation)(id, with_data.translation as *const c_void, none);
                    (by.syscall)(id, with_data.syscall as *const c_void, none);
                    (by.syscall_return)(id, with_data.syscall_return as *const c_void, none);
                }
            }
        }
    }

    /// Address and number of instructions of a translation block.
    ///
    /// # Safety
    /// `tb` is that of a running translation callback; so for all that follows.
    pub(crate) unsafe fn block(&self, tb: *const Translated) -> (u64, usize) {
        ((self.tb_vaddr)(tb), (self.tb_n_insns)(tb))
    }

    pub(crate) unsafe fn instruction(
        &self,
        tb: *const Translated,
        index: usize,
    ) -> *mut Instruction {
        (self.tb_get_insn)(tb, index)
    }

    /// Address and size in bytes.
    pub(crate) unsafe fn place(&self, instruction: *const Instruction) -> (u64, usize) {
        (
            (self.insn_vaddr)(instruction),
            (self.insn_size)(instruction),
        )
    }

    /// Appends the instruction's bytes.
    pub(crate) unsafe fn bytes(&self, instruction: *const Instruction, into: &mut Vec<u8>) {
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

    pub(crate) unsafe fn call_at_block(
        &self,
        tb: *mut Translated,
        call: OnExecution,
        with: *mut c_void,
    ) {
        (self.on_tb)(tb, call, NO_REGISTERS, with);
    }

    pub(crate) unsafe fn call_at_instruction(
        &self,
        instruction: *mut Instruction,
        call: OnExecution,
        with: *mut c_void,
    ) {
        (self.on_insn)(instruction, call, NO_REGISTERS, with);
    }
}

fn lookup(name: &CStr) -> *mut c_void {
    // SAFETY: a lookup of a name that ends with NUL.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr() as *const c_char) }
}

fn has(name: &CStr) -> bool {
    !lookup(name).is_null()
}

/// # Safety
/// `F` is the type of the function called `name`.
unsafe fn find<F: Copy>(name: &'static CStr) -> Result<F, &'static str> {
    let address = lookup(name);
    if address.is_null() || std::mem::size_of::<F>() != std::mem::size_of::<*mut c_void>() {
        return Err(name.to_str().unwrap_or("a function"));
    }
    Ok(std::mem::transmute_copy(&address))
}
