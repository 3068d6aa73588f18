//! Warns of system calls that QEMU carries out differently from the kernel, once for each kind and process.

use rtit_events::EventKind;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::interface::guest_memory;
use crate::shared::recorder_link::new_message;
use crate::shared::shared_state::SharedState;
use crate::thread::thread_state::Thread;
use crate::thread::translation_block::BlockExit;

const RLIM_INFINITY: u64 = u64::MAX;

/// One bit for each warning that this process has sent, by index in `WARNINGS`.
static WARNED: AtomicU32 = AtomicU32::new(0);

const WARNINGS: [&str; 9] = [
    "QEMU does not apply seccomp: what it forbids is done",
    "QEMU does not know process_vm_writev: it fails",
    "QEMU does not apply limits of the address space",
    "QEMU gives a child of CLONE_VM that is no thread memory of its own",
    "QEMU refuses new process namespaces",
    "QEMU may not notice when code in shared memory changes from elsewhere: it then runs the old code",
    "QEMU may not notice when code changes through /proc/PID/mem: it then runs the old code",
    "QEMU does not know ptrace: it fails",
    "QEMU does not make 32-bit system calls (INT 80H) for a 64-bit program: they fail",
];

/// Warns if the system call that begins is one of these. `thread.block` is still the block that made it.
pub(super) fn warn_if_unsupported(
    shared: &SharedState,
    thread: &Thread,
    number: i64,
    arguments: [u64; 6],
) {
    let Some(index) = unsupported_feature(thread, number, arguments) else {
        return;
    };
    if WARNED.fetch_or(1 << index, Ordering::Relaxed) >> index & 1 == 0 {
        let message = new_message(EventKind::Warning, thread.tid, thread.now());
        shared.send(message, WARNINGS[index].as_bytes());
    }
}

fn unsupported_feature(
    thread: &Thread,
    number: i64,
    [a1, a2, a3, a4, ..]: [u64; 6],
) -> Option<usize> {
    if thread.block.exit == BlockExit::SoftInt && thread.block.code.ends_with(&[0xcd, 0x80]) {
        return Some(8);
    }
    let limits = |resource: u64, at: u64| {
        let mut soft = [0; 8];
        let known = at != 0 && guest_memory::read_bytes(at, &mut soft) == soft.len();
        let limited = known && u64::from_le_bytes(soft) != RLIM_INFINITY;
        (resource == u64::from(libc::RLIMIT_AS) && limited).then_some(2)
    };
    let flags = |wanted: i32, unwanted: i32| {
        let has = |flag: i32| a1 & flag as u64 != 0;
        has(wanted) && !has(unwanted)
    };
    match number {
        libc::SYS_prctl if a1 == libc::PR_SET_SECCOMP as u64 => Some(0),
        // Not the query for available actions.
        libc::SYS_seccomp if a1 <= u64::from(libc::SECCOMP_SET_MODE_FILTER) => Some(0),
        libc::SYS_process_vm_writev => Some(1),
        libc::SYS_ptrace => Some(7),
        libc::SYS_setrlimit => limits(a1, a2),
        libc::SYS_prlimit64 => limits(a2, a3),
        libc::SYS_clone if flags(libc::CLONE_VM, libc::CLONE_THREAD | libc::CLONE_VFORK) => Some(3),
        libc::SYS_unshare if flags(libc::CLONE_NEWPID, 0) => Some(4),
        libc::SYS_mmap => {
            let shared = a4 & 0xf == libc::MAP_SHARED as u64;
            (shared && a3 & libc::PROT_EXEC as u64 != 0).then_some(5)
        }
        libc::SYS_openat if a3 & libc::O_ACCMODE as u64 != 0 => is_proc_mem(a2).then_some(6),
        libc::SYS_open if a2 & libc::O_ACCMODE as u64 != 0 => is_proc_mem(a1).then_some(6),
        _ => None,
    }
}

/// Returns whether the path at `at` names the memory of a process.
fn is_proc_mem(at: u64) -> bool {
    let mut begin = [0; 6];
    let in_proc = guest_memory::read_bytes(at, &mut begin) == begin.len() && begin == *b"/proc/";
    in_proc && guest_memory::read_c_string(at, 64).is_some_and(|name| name.ends_with(b"/mem"))
}
