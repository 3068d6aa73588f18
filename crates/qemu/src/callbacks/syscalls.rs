//! A system call begins or returns. The thread leaves and enters user code, and some calls change what must be
//! recorded: threads, programs, mappings, signal actions, names. Of system calls that QEMU carries out differently from
//! the kernel the plugin warns, once for each kind and process.

use std::sync::atomic::{AtomicU32, Ordering};

use rtit_events::{flag, EventKind};

use crate::fatal_error::exit_with_error;
use crate::interface::plugin_api::PluginId;
use crate::interface::{guest_state, signals};
use crate::process::lifecycle::{self, leave_kernel, stop_other_recordings};
use crate::process::{exec, fault_causes};
use crate::shared::block_ring;
use crate::shared::recorder_link::new_message;
use crate::shared::shared_state::{set_multithreaded, shared_state, thread_of, SharedState};
use crate::thread::thread_state::{PendingSyscall, RecordedThread, MODE_KERNEL};
use crate::thread::translation_block::BlockExit;

const PR_SET_NAME: u64 = 15;
const ALL: u64 = u64::MAX;

#[allow(clippy::too_many_arguments)] // QEMU's signature
pub(crate) extern "C" fn on_syscall(
    _id: PluginId,
    vcpu: u32,
    number: i64,
    a1: u64,
    a2: u64,
    a3: u64,
    a4: u64,
    a5: u64,
    a6: u64,
    _a7: u64,
    _a8: u64,
) {
    let shared = shared_state();
    block_ring::close_ring(thread_of(vcpu));
    // SAFETY: the vCPU's own thread calls.
    let Some(thread) = (unsafe { thread_of(vcpu).as_mut() }) else {
        return;
    };
    if thread.block.exit == BlockExit::Syscall {
        thread
            .cpu
            .verify_layout(number, [a1, a2, a3, a4, a5, a6], thread.block.next);
    }
    warn_if_unsupported(shared, thread, number, [a1, a2, a3, a4, a5, a6]);
    thread.enter_kernel();
    fault_causes::clear_signal_notes();
    shared.clock.publish_clock(thread.clock_in_instructions());
    thread.count_towards_window(shared);
    let own_files = [&shared.link.socket, &lifecycle::LIFELINE];
    for file in own_files {
        file.move_away_from_arguments(&[a1, a2, a3, a4, a5, a6]);
    }
    thread.call = PendingSyscall {
        arguments: [a1, a2, a3, a4],
        cut_off: closed_descriptors(number, a1, a2, a3).map_or([false; 2], |(first, last)| {
            own_files.map(|file| file.is_number_in_range(first, last))
        }),
        ..PendingSyscall::default()
    };
    match number {
        libc::SYS_exit => {
            thread.end_trace(wait_status(a1), 0);
            return lifecycle::forget_thread(vcpu, thread);
        }
        libc::SYS_exit_group => {
            stop_other_recordings(wait_status(a1));
            thread.end_trace(wait_status(a1), flag::EXIT_WHOLE_PROCESS);
            // QEMU would wait for ever for the threads that have been stopped.
            // SAFETY: ends the process, as the program asked.
            unsafe { libc::_exit(a1 as i32 & 0xff) };
        }
        libc::SYS_execve => {
            exec::run_under_qemu(shared, thread, guest_state::read_c_string(a1, 4096), a2, a3)
        }
        libc::SYS_execveat => {
            let path = guest_state::read_c_string(a2, 4096)
                .and_then(|path| exec::execveat_path(a1, path, a5));
            exec::run_under_qemu(shared, thread, path, a3, a4);
        }
        libc::SYS_clone | libc::SYS_clone3 => {
            if number == libc::SYS_clone3 || shares_memory(a1) {
                set_multithreaded();
            }
            lifecycle::expect_new_thread_of(thread.tid);
        }
        _ if installs_signal_action(number, a2) => {
            thread.call.ignores = signals::sigaction_ignores_signal(a2);
            shared.record_signal_action(a1, a2);
        }
        _ => {}
    }
    thread.flush_in_kernel(shared);
    thread.mode.store(MODE_KERNEL, Ordering::Release);
    // From here on the process may end or run another program, with this thread still waiting for the lock.
    if installs_signal_action(number, a2) {
        signals::lock_signal_actions();
    }
}

pub(crate) extern "C" fn on_syscall_return(_id: PluginId, vcpu: u32, number: i64, result: i64) {
    let shared = shared_state();
    // SAFETY: the vCPU's own thread calls.
    let Some(thread) = (unsafe { thread_of(vcpu).as_mut() }) else {
        return;
    };
    leave_kernel(thread);
    let call = std::mem::take(&mut thread.call);
    exec::restore_stack_limit(call.stack);
    let PendingSyscall {
        arguments,
        cut_off,
        ignores,
        leaves,
        ..
    } = call;
    let failed = (-4095..0).contains(&result);
    let [a1, a2, a3, _] = arguments;
    if installs_signal_action(number, a2) {
        if !failed {
            signal_action_installed(a1 as i32, ignores);
        }
        signals::unlock_signal_actions();
    }
    if failed {
        if leaves {
            exec::report_failed_exec(shared, thread);
        }
        return;
    }
    let [socket, lifeline] = cut_off;
    if socket {
        if let Err(error) = shared.link.reconnect_to_recorder() {
            exit_with_error(&format!("the recorder is gone: {error}"));
        }
    }
    if lifeline {
        lifecycle::hold_recorder_lifeline(&shared.config.folder);
    }
    match number {
        libc::SYS_mmap => shared.forget_mappings(result as u64, a2),
        libc::SYS_munmap => shared.forget_mappings(a1, a2),
        libc::SYS_mremap => {
            shared.forget_mappings(a1, a2);
            shared.forget_mappings(result as u64, a3);
        }
        // The length of these mappings is unknown: check all code again.
        libc::SYS_shmat | libc::SYS_shmdt => shared.forget_mappings(0, ALL),
        libc::SYS_prctl if a1 == PR_SET_NAME => report_thread_name(shared, thread, a2),
        _ => {}
    }
}

/// The callbacks with the signatures of version 7 of the plugin interface: user data in place of the plugin's id.
pub(crate) mod with_data {
    use std::ffi::c_void;

    use crate::interface::plugin_api::PluginTb;

    /// The callbacks do not use the id.
    const ID: u64 = 0;

    pub(crate) extern "C" fn on_translation(tb: *mut PluginTb, _data: *mut c_void) {
        crate::callbacks::blocks::on_translation(ID, tb);
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
        super::on_syscall(ID, vcpu, number, a1, a2, a3, a4, a5, a6, a7, a8);
    }

    pub(crate) extern "C" fn on_syscall_return(
        vcpu: u32,
        number: i64,
        result: i64,
        _: *mut c_void,
    ) {
        super::on_syscall_return(ID, vcpu, number, result);
    }
}

fn installs_signal_action(number: i64, action: u64) -> bool {
    number == libc::SYS_rt_sigaction && action != 0
}

/// Updates the signal state after rt_sigaction; `ignores` is whether the new action ignores the signal, if known.
fn signal_action_installed(signal: i32, ignores: Option<bool>) {
    if let Some(ignores) = ignores {
        signals::record_ignored_signal(signal, ignores);
    }
    signals::catch_signal_after_sigaction(signal);
    signals::wrap_handlers_after_sigaction(signal);
    fault_causes::wrap_fault_handler(signal);
}

/// Returns whether these flags of clone make a thread. QEMU turns vfork into a process of its own.
fn shares_memory(flags: u64) -> bool {
    let flags = flags as i32;
    flags & libc::CLONE_VM != 0 && flags & libc::CLONE_VFORK == 0
}

fn wait_status(code: u64) -> u32 {
    (code as u32 & 0xff) << 8
}

/// Returns the first and last descriptor that the call closes, for close_range.
fn closed_descriptors(number: i64, a1: u64, a2: u64, a3: u64) -> Option<(u64, u64)> {
    const CLOSE_RANGE_CLOEXEC: u64 = 4;
    let closes = number == libc::SYS_close_range && a3 & CLOSE_RANGE_CLOEXEC == 0;
    closes.then_some((a1 & 0xffff_ffff, a2 & 0xffff_ffff))
}

fn report_thread_name(shared: &SharedState, thread: &RecordedThread, name: u64) {
    if let Some(name) = guest_state::read_c_string(name, 4096) {
        let mut message = new_message(EventKind::Comm, thread.tid, thread.clock_in_instructions());
        message.ip = shared.pid().into();
        shared.send_message(message, &name[..name.len().min(15)]);
    }
}

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
fn warn_if_unsupported(
    shared: &SharedState,
    thread: &RecordedThread,
    number: i64,
    arguments: [u64; 6],
) {
    let Some(index) = unsupported_feature(thread, number, arguments) else {
        return;
    };
    if WARNED.fetch_or(1 << index, Ordering::Relaxed) >> index & 1 == 0 {
        shared.send_warning(thread.tid, thread.clock_in_instructions(), WARNINGS[index]);
    }
}

fn unsupported_feature(
    thread: &RecordedThread,
    number: i64,
    [a1, a2, a3, a4, ..]: [u64; 6],
) -> Option<usize> {
    if thread.block.exit == BlockExit::SoftInt && thread.block.code.ends_with(&[0xcd, 0x80]) {
        return Some(8);
    }
    let limits = |resource: u64, at: u64| {
        let mut soft = [0; 8];
        let known = at != 0 && guest_state::read_bytes(at, &mut soft) == soft.len();
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
    let in_proc = guest_state::read_bytes(at, &mut begin) == begin.len() && begin == *b"/proc/";
    in_proc && guest_state::read_c_string(at, 64).is_some_and(|name| name.ends_with(b"/mem"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_range_closes_its_range_unless_cloexec() {
        assert_eq!(
            closed_descriptors(libc::SYS_close_range, 3, u64::MAX, 0),
            Some((3, 0xffff_ffff))
        );
        assert_eq!(
            closed_descriptors(libc::SYS_close_range, 3, u64::MAX, 4),
            None
        );
        assert_eq!(closed_descriptors(libc::SYS_read, 3, 4, 5), None);
    }

    #[test]
    fn wait_status_has_the_exit_code_in_its_second_byte() {
        assert_eq!([wait_status(3), wait_status(u64::MAX)], [0x300, 0xff00]);
    }
}
