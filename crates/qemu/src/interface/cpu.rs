//! The guest's registers, which version 1 of the plugin interface does not give.
//!
//! Generated code keeps the address of QEMU's CPU state in a fixed register of the host, rbp, which callbacks find
//! untouched. That state begins with the 16 general registers in their encoding's order and RIP, and it is up to date
//! where a block starts. Nobody promises any of this: it counts only after a system call's number, six arguments
//! and address were found in it where they must be.

/// The first fields of QEMU's CPUX86State.
#[repr(C)]
pub(crate) struct State {
    registers: [u64; 16],
    rip: u64,
}

const RAX: usize = 0;
const RDX: usize = 2;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;

/// What a signal handler starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers {
    pub(crate) rdi: u64,
    pub(crate) rsi: u64,
    pub(crate) rdx: u64,
    pub(crate) rsp: u64,
}

/// Where the state of one vCPU is, as far as that is known.
#[derive(Clone, Copy)]
pub(crate) struct Cpu {
    state: *const State,
    proven: bool,
}

impl Cpu {
    pub(crate) fn new(state: *const State) -> Cpu {
        Cpu {
            state,
            proven: false,
        }
    }

    /// Compares the state with a system call's arguments and with the address after it.
    pub(crate) fn prove(&mut self, number: i64, arguments: [u64; 6], rip: u64) {
        if self.state.is_null() || self.proven {
            return;
        }
        // SAFETY: the register holds a pointer to readable memory, or it fails here at the first system call of all.
        let state = unsafe { std::ptr::read_volatile(self.state) };
        let order = [RDI, RSI, RDX, 10, 8, 9];
        let equal = order
            .iter()
            .zip(arguments)
            .all(|(&index, value)| state.registers[index] == value);
        self.proven = equal && state.registers[RAX] == number as u64 && state.rip == rip;
    }

    pub(crate) fn registers(&self) -> Option<Registers> {
        let registers = self.read()?.registers;
        Some(Registers {
            rdi: registers[RDI],
            rsi: registers[RSI],
            rdx: registers[RDX],
            rsp: registers[RSP],
        })
    }

    /// Where the thread is; only QEMU's own code, not a callback of generated code, may ask.
    pub(crate) fn rip(&self) -> Option<u64> {
        Some(self.read()?.rip)
    }

    fn read(&self) -> Option<State> {
        // SAFETY: proven to be the state of this vCPU, which lives as long as its thread.
        self.proven
            .then(|| unsafe { std::ptr::read_volatile(self.state) })
    }
}
