//! Reads the guest's registers, which version 1 of the plugin interface does not offer, and its memory.
//!
//! Code that QEMU generates keeps the address of the CPU state in rbp of the host, and callbacks find rbp unchanged.
//! The state begins with the 16 general registers in encoding order, then RIP, and is up to date where a block starts.
//! QEMU does not document this layout. The plugin therefore uses a state only after a system call has verified it: its
//! number, six arguments and return address must be at the expected offsets.
//!
//! The plugin shares the guest's address space, but an address may be unmapped: the kernel copies and reports how far
//! it got.

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
    pub(crate) fn read_rip(&self) -> Option<u64> {
        Some(self.read_state()?.rip)
    }

    fn read_state(&self) -> Option<QemuCpuState> {
        // SAFETY: verified to be the state of this vCPU, which lives as long as its thread.
        self.verified
            .then(|| unsafe { std::ptr::read_volatile(self.state) })
    }
}

/// Fills `into` from `address` on and returns how many bytes were readable.
pub(crate) fn read_bytes(address: u64, into: &mut [u8]) -> usize {
    if into.is_empty() {
        return 0;
    }
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: into.len(),
    };
    // SAFETY: the kernel checks both ranges; `local` is ours to write.
    let count = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    usize::try_from(count).unwrap_or(0)
}

pub(crate) fn read_u64(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (read_bytes(address, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
}

/// Reads a string up to its NUL; None if it is unreadable or longer than `limit` bytes.
pub(crate) fn read_c_string(address: u64, limit: usize) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < limit {
        let at = address.wrapping_add(text.len() as u64);
        // Up to the end of a page: the next page may be unmapped.
        let room = (4096 - (at & 4095) as usize)
            .min(256)
            .min(limit - text.len());
        let mut piece = [0u8; 256];
        let count = read_bytes(at, &mut piece[..room]);
        let piece = &piece[..count];
        if let Some(end) = piece.iter().position(|&byte| byte == 0) {
            text.extend_from_slice(&piece[..end]);
            return Some(text);
        }
        if count < room {
            return None;
        }
        text.extend_from_slice(piece);
    }
    None
}

/// Reads an array of pointers to strings, up to its null pointer (argv, envp).
pub(crate) fn read_string_array(mut address: u64) -> Option<Vec<Vec<u8>>> {
    const LIMIT: usize = 8 << 20;
    let mut all = Vec::new();
    if address == 0 {
        return Some(all);
    }
    let mut size = 0;
    loop {
        let pointer = read_u64(address)?;
        if pointer == 0 {
            return Some(all);
        }
        let text = read_c_string(pointer, LIMIT)?;
        size += text.len() + 9;
        if size > LIMIT {
            return None;
        }
        all.push(text);
        address = address.wrapping_add(8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_addresses_read_as_none() {
        let text = *b"some text\0";
        let at = text.as_ptr() as u64;
        assert_eq!(read_c_string(at, 100).as_deref(), Some(&text[..9]));
        assert_eq!(read_c_string(at, 4), None);
        assert_eq!((read_c_string(8, 100), read_u64(8)), (None, None));
        let array = [at, at + 5, 0];
        let both = read_string_array(array.as_ptr() as u64).unwrap();
        assert_eq!(both, [b"some text".to_vec(), b"text".to_vec()]);
        assert_eq!(read_string_array(0), Some(Vec::new()));
        assert_eq!(read_string_array(16), None);
    }
}
