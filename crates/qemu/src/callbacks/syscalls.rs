//! System calls: user code is left and comes back, and some of them change what the recording has to say.

use std::sync::atomic::Ordering;

use crate::callbacks::unlike;
use crate::failure::die;
use crate::interface::api::PluginId;
use crate::interface::{defaults, ignored, memory, taken, turn};
use crate::process::ending::{leave_kernel, stop_others};
use crate::process::exec::{follow, plan, stack};
use crate::process::{faults, lifeline, threads};
use crate::shared::link::{Kind, Message, OF_PROCESS};
use crate::shared::ring;
use crate::shared::state::{shared, Shared};
use crate::shared::threads::{become_many, thread_of};
use crate::thread::block::Exit;
use crate::thread::state::{Call, Thread, KERNEL};

const PR_SET_NAME: u64 = 15;
const ALL: u64 = u64::MAX;

#[allow(clippy::too_many_arguments)] // QEMU's signature
pub(crate) extern "C" fn entered(
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
    ring::close(thread_of(vcpu));
    // SAFETY: the vCPU's own thread calls.
    let Some(thread) = (unsafe { thread_of(vcpu).as_mut() }) else {
        return;
    };
    if thread.block.exit == Exit::Syscall {
        thread
            .cpu
            .prove(number, [a1, a2, a3, a4, a5, a6], thread.block.next);
    }
    unlike::note(shared, thread, number, [a1, a2, a3, a4, a5, a6]);
    thread.enter_kernel();
    faults::forget();
    shared.clock.publish(thread.now());
    thread.count(shared);
    let own_files = [&shared.link.socket, &lifeline::FILE];
    for file in own_files {
        file.avoid(&[a1, a2, a3, a4, a5, a6]);
    }
    thread.call = Call {
        arguments: [a1, a2, a3, a4],
        cut_off: closed_files(number, a1, a2, a3).map_or([false; 2], |(first, last)| {
            own_files.map(|file| file.is_within(first, last))
        }),
        ..Call::default()
    };
    match number {
        libc::SYS_exit => {
            thread.end(wait_status(a1), 0);
            return threads::forget(vcpu, thread);
        }
        libc::SYS_exit_group => {
            stop_others(wait_status(a1));
            thread.end(wait_status(a1), OF_PROCESS);
            // QEMU would wait for the threads that have been stopped, in vain.
            // SAFETY: ends the process, as the program asked.
            unsafe { libc::_exit(a1 as i32 & 0xff) };
        }
        libc::SYS_execve => follow::exec(shared, thread, memory::string(a1, 4096), a2, a3),
        libc::SYS_execveat => {
            let path = memory::string(a2, 4096).and_then(|path| plan::path_at(a1, path, a5));
            follow::exec(shared, thread, path, a3, a4);
        }
        libc::SYS_clone | libc::SYS_clone3 => {
            if number == libc::SYS_clone3 || shares_memory(a1) {
                become_many();
            }
            threads::expect(thread.tid);
        }
        _ if installs_action(number, a2) => {
            thread.call.ignores = ignored::asked(a2);
            shared.install_handler(a1, a2);
        }
        _ => {}
    }
    thread.flush_in_kernel(shared);
    thread.mode.store(KERNEL, Ordering::Release);
    // from here on the process may end, or another thread's program come, with this one where it is
    if installs_action(number, a2) {
        turn::take();
    }
}

pub(crate) extern "C" fn returned(_id: PluginId, vcpu: u32, number: i64, result: i64) {
    let shared = shared();
    // SAFETY: the vCPU's own thread calls.
    let Some(thread) = (unsafe { thread_of(vcpu).as_mut() }) else {
        return;
    };
    leave_kernel(thread);
    let call = std::mem::take(&mut thread.call);
    stack::widen(call.stack);
    let Call {
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
            installed(a1 as i32, ignores);
        }
        turn::give_back();
    }
    if failed {
        if leaves {
            follow::stay(shared, thread);
        }
        return;
    }
    let [socket, lifeline] = cut_off;
    if socket {
        if let Err(error) = shared.link.reconnect() {
            die(&format!("the recorder is gone: {error}"));
        }
    }
    if lifeline {
        lifeline::hold(&shared.config.folder);
    }
    match number {
        libc::SYS_mmap => shared.unmapped(result as u64, a2),
        libc::SYS_munmap => shared.unmapped(a1, a2),
        libc::SYS_mremap => {
            shared.unmapped(a1, a2);
            shared.unmapped(result as u64, a3);
        }
        // How long these are, they do not say: look at everything anew.
        libc::SYS_shmat | libc::SYS_shmdt => shared.unmapped(0, ALL),
        libc::SYS_prctl if a1 == PR_SET_NAME => renamed(shared, thread, a2),
        _ => {}
    }
}

fn installs_action(number: i64, action: u64) -> bool {
    number == libc::SYS_rt_sigaction && action != 0
}

/// An action has been installed for a signal, which it `ignores` if that is known.
fn installed(signal: i32, ignores: Option<bool>) {
    if let Some(ignores) = ignores {
        ignored::installed(signal, ignores);
    }
    defaults::installed(signal);
    taken::installed(signal);
    faults::wrap(signal);
}

/// These flags of clone make a thread. QEMU makes a process of what vfork asks for.
fn shares_memory(flags: u64) -> bool {
    let flags = flags as i32;
    flags & libc::CLONE_VM != 0 && flags & libc::CLONE_VFORK == 0
}

fn wait_status(code: u64) -> u32 {
    (code as u32 & 0xff) << 8
}

/// The files that a system call closes all at once, first and last.
fn closed_files(number: i64, a1: u64, a2: u64, a3: u64) -> Option<(u64, u64)> {
    const CLOSE_RANGE_CLOEXEC: u64 = 4;
    let closes = number == libc::SYS_close_range && a3 & CLOSE_RANGE_CLOEXEC == 0;
    closes.then_some((a1 & 0xffff_ffff, a2 & 0xffff_ffff))
}

fn renamed(shared: &Shared, thread: &Thread, name: u64) {
    if let Some(name) = memory::string(name, 4096) {
        let mut message = Message::new(Kind::Comm, thread.tid, thread.now());
        message.ip = shared.pid().into();
        shared.send(message, &name[..name.len().min(15)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_closed() {
        assert_eq!(
            closed_files(libc::SYS_close_range, 3, u64::MAX, 0),
            Some((3, 0xffff_ffff))
        );
        assert_eq!(closed_files(libc::SYS_close_range, 3, u64::MAX, 4), None);
        assert_eq!(closed_files(libc::SYS_read, 3, 4, 5), None);
    }

    #[test]
    fn exit_codes_as_wait_has_them() {
        assert_eq!([wait_status(3), wait_status(u64::MAX)], [0x300, 0xff00]);
    }
}
