//! fork: the lock is held over it, and the child begins anew.

use std::sync::atomic::Ordering;

use crate::lifeline;
use crate::process::threads::THREADS;
use crate::process::{current, ids, process};
use crate::thread::{Thread, KERNEL};

pub(super) extern "C" fn before_fork() {
    process().lock.take();
}

pub(super) extern "C" fn in_parent() {
    process().lock.release();
}

/// Of all threads the calling one is left; it begins anew, under its new number.
pub(super) extern "C" fn in_child() {
    let process = process();
    let parent_pid = process.pid();
    let (pid, tid) = ids();
    process.pid.store(pid, Ordering::Relaxed);
    lifeline::hold(&process.config.folder);
    let me = current();
    // SAFETY: the lock is held since before the fork.
    let shared = unsafe { &mut *process.shared.get() };
    shared.live.retain(|&thread| thread == me);
    process.lock.release();
    for place in &THREADS {
        if place.load(Ordering::Relaxed) != me {
            place.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
    }
    if me.is_null() {
        return;
    }
    // SAFETY: our own thread, which is in the fork system call.
    let thread = unsafe { &mut *me };
    let (parent, was) = (thread.tid, thread.now());
    let cpu = thread.cpu;
    *thread = Thread::new(process, process.new_unit(), std::ptr::null(), tid);
    thread.cpu = cpu;
    thread.mode.store(KERNEL, Ordering::Relaxed);
    thread.raise(process.clock.latest().max(was) + process.clock.tick);
    process.clock.publish(thread.now());
    process.announce(thread, parent, parent_pid);
    process.with(|shared| thread.aim(&shared.ranges));
    thread.watch();
}
