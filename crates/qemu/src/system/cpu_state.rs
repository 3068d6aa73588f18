//! The state of an emulated processor: fields of QEMU's CPUX86State, the same in QEMU 7.2 and 10.0.

use std::ffi::{c_int, c_void};

use rtit_unit::{CodeWidth, ProcessorState};

const RSI: usize = 6 * 8;
const RDI: usize = 7 * 8;
const RIP: usize = 128;
const EFLAGS: usize = 136;
const HFLAGS: usize = 176;
const CS_BASE: usize = 216;
const CR3: usize = 448;

const CPL_MASK: u32 = 3;
const CS_32: u32 = 1 << 4;
const PROTECTED: u32 = 1 << 7;
const CS_64: u32 = 1 << 15;
const IN_SMM: u32 = 1 << 19;
const INTERRUPT_FLAG: u64 = 1 << 9;

/// The address of the processor's state, which is current at the start of each block.
#[derive(Clone, Copy)]
pub(super) struct SystemCpuState(*const u8);

impl SystemCpuState {
    pub(super) const NONE: SystemCpuState = SystemCpuState(std::ptr::null());

    pub(super) fn new(state: *const u8) -> SystemCpuState {
        SystemCpuState(state)
    }

    pub(super) fn is_known(self) -> bool {
        !self.0.is_null()
    }

    /// # Safety
    /// The field at `offset` is a `T`.
    unsafe fn read<T: Copy>(self, offset: usize) -> T {
        // SAFETY: QEMU's state lives as long as the process; the processor's thread, which calls, alone changes it.
        std::ptr::read_volatile(self.0.add(offset).cast())
    }

    fn hflags(self) -> u32 {
        // SAFETY: a field of that type.
        unsafe { self.read(HFLAGS) }
    }

    pub(super) fn rsi(self) -> u64 {
        // SAFETY: a field of that type.
        unsafe { self.read(RSI) }
    }

    pub(super) fn rdi(self) -> u64 {
        // SAFETY: a field of that type.
        unsafe { self.read(RDI) }
    }

    /// Returns the address of the block that starts, or of the instruction that has an exception.
    #[inline(always)]
    pub(super) fn code_address(self, width: CodeWidth) -> u64 {
        // SAFETY: fields of that type.
        unsafe {
            let rip: u64 = self.read(RIP);
            match width {
                CodeWidth::Bits64 => rip,
                _ => u64::from(rip.wrapping_add(self.read(CS_BASE)) as u32),
            }
        }
    }

    pub(super) fn cr3(self) -> u64 {
        // SAFETY: a field of that type.
        unsafe { self.read(CR3) }
    }

    pub(super) fn interrupt_flag(self) -> bool {
        // SAFETY: a field of that type.
        let eflags: u64 = unsafe { self.read(EFLAGS) };
        eflags & INTERRUPT_FLAG != 0
    }

    pub(super) fn is_user(self) -> bool {
        self.hflags() & CPL_MASK == 3
    }

    pub(super) fn code_width(self) -> CodeWidth {
        match self.hflags() {
            flags if flags & CS_64 != 0 => CodeWidth::Bits64,
            flags if flags & CS_32 != 0 => CodeWidth::Bits32,
            _ => CodeWidth::Bits16,
        }
    }

    pub(super) fn is_in_protected_mode(self) -> bool {
        self.hflags() & (PROTECTED | IN_SMM) == PROTECTED
    }

    pub(super) fn is_in_real_mode(self) -> bool {
        self.hflags() & (PROTECTED | IN_SMM) == 0
    }

    pub(super) fn processor_state(self) -> ProcessorState {
        ProcessorState {
            user: self.is_user(),
            code: self.code_width(),
            interrupt_flag: self.interrupt_flag(),
        }
    }
}

/// Returns the address of QEMU's CPUState of the processor that this thread runs, or null.
pub(super) fn current_cpu() -> *mut c_void {
    // SAFETY: QEMU exports a variable of each thread.
    unsafe {
        let variable = libc::dlsym(libc::RTLD_DEFAULT, c"current_cpu".as_ptr());
        if variable.is_null() {
            return variable;
        }
        *variable.cast::<*mut c_void>()
    }
}

/// Fills `into` from a virtual address of the processor that this thread runs. Returns whether all of it is mapped.
pub(super) fn read_guest_memory(address: u64, into: &mut [u8]) -> bool {
    type ReadOrWrite = unsafe extern "C" fn(*mut c_void, u64, *mut c_void, u64, bool) -> c_int;
    // SAFETY: QEMU exports a function of this type.
    unsafe {
        let function = libc::dlsym(libc::RTLD_DEFAULT, c"cpu_memory_rw_debug".as_ptr());
        let processor = current_cpu();
        if function.is_null() || processor.is_null() {
            return false;
        }
        let function = std::mem::transmute::<*mut c_void, ReadOrWrite>(function);
        function(
            processor,
            address,
            into.as_mut_ptr().cast(),
            into.len() as u64,
            false,
        ) == 0
    }
}
