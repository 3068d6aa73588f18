//! The state of an emulated processor: fields of QEMU's CPUX86State.
//!
//! QEMU does not document this layout. It differs in the number of general registers with which it begins:
//! `find_layout`, at the first block after reset. The first exception of the log proves the layout, because the log
//! has the values of the fields: `is_state_before`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use rtit_unit::{CodeWidth, ProcessorState};

use super::qemu_log::LoggedInterrupt;

const RAX: usize = 0;
const RCX: usize = 8;
const RDX: usize = 2 * 8;
const RSI: usize = 6 * 8;
const RDI: usize = 7 * 8;
/// Fields after the general registers.
const RIP: usize = 0;
const EFLAGS: usize = 8;
const HFLAGS: usize = 48;
const CS_BASE: usize = 88;
const CR3: usize = 320;

/// Bytes of 16 general registers, and of 32, with those of APX (QEMU 11.1).
const POSSIBLE_REGISTER_BYTES: [usize; 2] = [16 * 8, 32 * 8];
/// 0 before the first block.
static REGISTER_BYTES: AtomicUsize = AtomicUsize::new(0);

const CPL_MASK: u32 = 3;
const CS_32: u32 = 1 << 4;
const PROTECTED: u32 = 1 << 7;
const CS_64: u32 = 1 << 15;
const IN_SMM: u32 = 1 << 19;
const INTERRUPT_FLAG: u64 = 1 << 9;

/// The state in which a processor starts: real mode.
pub(super) const STATE_AFTER_RESET: ProcessorState = ProcessorState {
    user: false,
    code: CodeWidth::Bits16,
    interrupt_flag: false,
};

/// The address of the processor's state, which is current at the start of each block.
#[derive(Clone, Copy)]
pub(super) struct SystemCpuState(*const u8);

pub(super) const UNKNOWN_LAYOUT: &str =
    "it is unknown where this version of QEMU keeps the state of a processor \
     (tested: QEMU 7.2, 8.2, 10.0, 10.2 and 11.1)";

// SAFETY: an address. What is there is read as volatile.
unsafe impl Send for SystemCpuState {}
// SAFETY: as above.
unsafe impl Sync for SystemCpuState {}

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

    /// # Safety
    /// The field at `offset` after the general registers is a `T`.
    #[inline(always)]
    unsafe fn read_after_registers<T: Copy>(self, offset: usize) -> T {
        self.read(REGISTER_BYTES.load(Ordering::Relaxed) + offset)
    }

    fn hflags(self) -> u32 {
        // SAFETY: a field of that type.
        unsafe { self.read_after_registers(HFLAGS) }
    }

    pub(super) fn rax(self) -> u64 {
        // SAFETY: a field of that type.
        unsafe { self.read(RAX) }
    }

    pub(super) fn rcx(self) -> u64 {
        // SAFETY: a field of that type.
        unsafe { self.read(RCX) }
    }

    pub(super) fn rdx(self) -> u64 {
        // SAFETY: a field of that type.
        unsafe { self.read(RDX) }
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
        self.code_address_in_layout(REGISTER_BYTES.load(Ordering::Relaxed), width)
    }

    #[inline(always)]
    fn code_address_in_layout(self, register_bytes: usize, width: CodeWidth) -> u64 {
        // SAFETY: fields of that type, or general registers.
        unsafe {
            let rip: u64 = self.read(register_bytes + RIP);
            match width {
                CodeWidth::Bits64 => rip,
                _ => u64::from(rip.wrapping_add(self.read(register_bytes + CS_BASE)) as u32),
            }
        }
    }

    /// Returns whether the state is that before an interrupt or exception of the log.
    pub(super) fn is_state_before(self, interrupt: &LoggedInterrupt) -> bool {
        let state = self.processor_state();
        state == interrupt.state_before()
            && self.code_address(state.code) == interrupt.ip
            && interrupt.cr3 == Some(self.cr3())
    }

    pub(super) fn cr3(self) -> u64 {
        // SAFETY: a field of that type.
        unsafe { self.read_after_registers(CR3) }
    }

    pub(super) fn interrupt_flag(self) -> bool {
        // SAFETY: a field of that type.
        let eflags: u64 = unsafe { self.read_after_registers(EFLAGS) };
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

/// Finds out where the fields of the state are, at the first block after a reset, which has this address. Returns
/// whether a known layout has the address there.
pub(super) fn find_layout(cpu: SystemCpuState, address: u64) -> bool {
    if REGISTER_BYTES.load(Ordering::Relaxed) == 0 {
        let found = register_bytes_before(cpu, address);
        REGISTER_BYTES.store(found.unwrap_or_default(), Ordering::Relaxed);
        return found.is_some();
    }
    true
}

/// Returns the size of the general registers if, in 16-bit code, this address is in the fields after them.
fn register_bytes_before(cpu: SystemCpuState, address: u64) -> Option<usize> {
    POSSIBLE_REGISTER_BYTES
        .into_iter()
        .find(|&size| cpu.code_address_in_layout(size, CodeWidth::Bits16) == address)
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

/// Returns QEMU's index of the processor that this thread runs.
pub(super) fn current_cpu_index(processors: u32) -> Option<u32> {
    type GetCpu = unsafe extern "C" fn(c_int) -> *mut c_void;
    let cpu = current_cpu();
    // SAFETY: QEMU exports a function of this type.
    unsafe {
        let function = libc::dlsym(libc::RTLD_DEFAULT, c"qemu_get_cpu".as_ptr());
        let function = std::mem::transmute::<*mut c_void, Option<GetCpu>>(function)?;
        (0..processors).find(|&index| function(index as c_int) == cpu)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_found_by_the_address_of_the_first_block() {
        // After reset, RIP is 0xfff0 and the base of CS is 0xffff0000.
        let reset_vector = 0xffff_fff0;
        for size in POSSIBLE_REGISTER_BYTES {
            let mut state = vec![0_u64; 100];
            state[(size + RIP) / 8] = 0xfff0;
            state[(size + CS_BASE) / 8] = 0xffff_0000;
            let cpu = SystemCpuState::new(state.as_ptr().cast());
            assert_eq!(register_bytes_before(cpu, reset_vector), Some(size));
        }
        let other = vec![0_u64; 100];
        let cpu = SystemCpuState::new(other.as_ptr().cast());
        assert_eq!(register_bytes_before(cpu, reset_vector), None);
    }
}
