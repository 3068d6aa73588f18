//! Reads the guest's registers, which version 1 of the plugin interface does not offer.
//!
//! Code that QEMU generates keeps the address of the CPU state in rbp of the host, and callbacks find rbp unchanged.
//! The state begins with the 16 general registers in encoding order, then RIP, and is up to date where a block starts.
//! QEMU does not document this layout. The plugin therefore uses a state only after a system call has verified it: its
//! number, six arguments and return address must be at the expected offsets.

/// The first fields of QEMU's CPUX86State.
#[repr(C)]
pub(crate) struct QemuCpuState {
    registers: [u64; 16],
    rip: u64,
}

const RAX: usize = 0;
const RDX: usize = 2;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;

/// The registers with which a signal handler starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandlerRegisters {
    pub(crate) rdi: u64,
    pub(crate) rsi: u64,
    pub(crate) rdx: u64,
    pub(crate) rsp: u64,
}

/// The CPU state of one vCPU. Reads return None until `verify_layout` has succeeded.
#[derive(Clone, Copy)]
pub(crate) struct CpuState {
    state: *const QemuCpuState,
    verified: bool,
}

impl CpuState {
    pub(crate) fn new(state: *const QemuCpuState) -> CpuState {
        CpuState {
            state,
            verified: false,
        }
    }

    /// Compares the state with the arguments of a system call and with the address after it.
    pub(crate) fn verify_layout(&mut self, number: i64, arguments: [u64; 6], rip: u64) {
        if self.state.is_null() || self.verified {
            return;
        }
        // SAFETY: the register holds a pointer to readable memory, or QEMU crashes at its first system call.
        let state = unsafe { std::ptr::read_volatile(self.state) };
        let order = [RDI, RSI, RDX, 10, 8, 9];
        let equal = order
            .iter()
            .zip(arguments)
            .all(|(&index, value)| state.registers[index] == value);
        self.verified = equal && state.registers[RAX] == number as u64 && state.rip == rip;
    }

    pub(crate) fn handler_registers(&self) -> Option<HandlerRegisters> {
        let registers = self.read_state()?.registers;
        Some(HandlerRegisters {
            rdi: registers[RDI],
            rsi: registers[RSI],
            rdx: registers[RDX],
            rsp: registers[RSP],
        })
    }

    /// Returns the thread's RIP. It is current only while QEMU's own code runs, not in a callback of generated code.
    pub(crate) fn rip(&self) -> Option<u64> {
        Some(self.read_state()?.rip)
    }

    fn read_state(&self) -> Option<QemuCpuState> {
        // SAFETY: verified to be the state of this vCPU, which lives as long as its thread.
        self.verified
            .then(|| unsafe { std::ptr::read_volatile(self.state) })
    }
}
