//! A system call begins or returns. The thread leaves and enters user code, and some calls change what must be
//! recorded: threads, programs, mappings, signal actions, names.

use rtit_events::{flag, EventKind};
use std::sync::atomic::Ordering;

use crate::callbacks::unsupported_syscalls;
use crate::fatal_error::exit_with_error;
use crate::interface::plugin_api::PluginId;
use crate::interface::{guest_memory, signals};
use crate::process::exec::{kernel_limits, run_under_qemu, target_program};
use crate::process::process_end::{leave_kernel, stop_others};
use crate::process::{fault_causes, lifecycle, lifeline};
use crate::shared::block_ring;
use crate::shared::recorder_link::new_message;
use crate::shared::shared_state::{shared, SharedState};
use crate::shared::thread_table::{set_multithreaded, thread_of};
use crate::thread::thread_state::{PendingSyscall, Thread, MODE_KERNEL};
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
    let shared = shared();
    block_ring::close(thread_of(vcpu));
    // SAFETY: the vCPU's own thread calls.
    let Some(thread) = (unsafe { thread_of(vcpu).as_mut() }) else {
        return;
    };
    if thread.block.exit == BlockExit::Syscall {
        thread
            .cpu
            .verify_layout(number, [a1, a2, a3, a4, a5, a6], thread.block.next);
    }
    unsupported_syscalls::warn_if_unsupported(shared, thread, number, [a1, a2, a3, a4, a5, a6]);
    thread.enter_kernel();
    fault_causes::clear_signal_notes();
    shared.clock.publish(thread.now());
    thread.count_towards_window(shared);
    let own_files = [&shared.link.socket, &lifeline::LIFELINE];
    for file in own_files {
        file.move_away_from(&[a1, a2, a3, a4, a5, a6]);
    }
    thread.call = PendingSyscall {
        arguments: [a1, a2, a3, a4],
        cut_off: closed_descriptors(number, a1, a2, a3).map_or([false; 2], |(first, last)| {
            own_files.map(|file| file.is_in_range(first, last))
        }),
        ..PendingSyscall::default()
    };
    match number {
        libc::SYS_exit => {
            thread.end_trace(wait_status(a1), 0);
            return lifecycle::forget_thread(vcpu, thread);
        }
        libc::SYS_exit_group => {
            stop_others(wait_status(a1));
            thread.end_trace(wait_status(a1), flag::EXIT_WHOLE_PROCESS);
            // QEMU would wait for the threads that have been stopped, in vain.
            // SAFETY: ends the process, as the program asked.
            unsafe { libc::_exit(a1 as i32 & 0xff) };
        }
        libc::SYS_execve => run_under_qemu::run_under_qemu(
            shared,
            thread,
            guest_memory::read_c_string(a1, 4096),
            a2,
            a3,
        ),
        libc::SYS_execveat => {
            let path = guest_memory::read_c_string(a2, 4096)
                .and_then(|path| target_program::execveat_path(a1, path, a5));
            run_under_qemu::run_under_qemu(shared, thread, path, a3, a4);
        }
        libc::SYS_clone | libc::SYS_clone3 => {
            if number == libc::SYS_clone3 || shares_memory(a1) {
                set_multithreaded();
            }
            lifecycle::expect_child_of(thread.tid);
        }
        _ if installs_action(number, a2) => {
            thread.call.ignores = signals::action_ignores(a2);
            shared.record_signal_action(a1, a2);
        }
        _ => {}
    }
    thread.flush_in_kernel(shared);
    thread.mode.store(MODE_KERNEL, Ordering::Release);
    // From here on the process may end or run another program, with this thread still waiting for the lock.
    if installs_action(number, a2) {
        signals::lock_signal_actions();
    }
}

pub(crate) extern "C" fn on_syscall_return(_id: PluginId, vcpu: u32, number: i64, result: i64) {
    let shared = shared();
    // SAFETY: the vCPU's own thread calls.
    let Some(thread) = (unsafe { thread_of(vcpu).as_mut() }) else {
        return;
    };
    leave_kernel(thread);
    let call = std::mem::take(&mut thread.call);
    kernel_limits::restore_stack_limit(call.stack);
    let PendingSyscall {
        arguments,
        cut_off,
        ignores,
        leaves,
        ..
    } = call;
    let failed = (-4095..0).contains(&result);
    let [a1, a2, a3, _] = arguments;
    if installs_action(number, a2) {
        if !failed {
            signal_action_installed(a1 as i32, ignores);
        }
        signals::unlock_signal_actions();
    }
    if failed {
        if leaves {
            run_under_qemu::report_failed_exec(shared, thread);
        }
        return;
    }
    let [socket, lifeline] = cut_off;
    if socket {
        if let Err(error) = shared.link.reconnect() {
            exit_with_error(&format!("the recorder is gone: {error}"));
        }
    }
    if lifeline {
        lifeline::hold_lifeline(&shared.config.folder);
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

fn installs_action(number: i64, action: u64) -> bool {
    number == libc::SYS_rt_sigaction && action != 0
}

/// Updates the signal state after rt_sigaction; `ignores` is whether the new action ignores the signal, if known.
fn signal_action_installed(signal: i32, ignores: Option<bool>) {
    if let Some(ignores) = ignores {
        signals::record_ignored(signal, ignores);
    }
    signals::catch_after_sigaction(signal);
    signals::wrap_after_sigaction(signal);
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

fn report_thread_name(shared: &SharedState, thread: &Thread, name: u64) {
    if let Some(name) = guest_memory::read_c_string(name, 4096) {
        let mut message = new_message(EventKind::Comm, thread.tid, thread.now());
        message.ip = shared.pid().into();
        shared.send(message, &name[..name.len().min(15)]);
    }
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
