//! fork: the lock is held over it, and the child begins anew.

use std::sync::atomic::Ordering;

use crate::interface::{taken, turn};
use crate::process::{ending, lifeline, threads};
use crate::shared::ring;
use crate::shared::state::{ids, shared};
use crate::shared::threads::{current, keep_only};
use crate::thread::state::KERNEL;

/// Every fork of the process takes this way.
pub(super) fn watch() {
    // SAFETY: the handlers are functions without arguments.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

extern "C" fn before_fork() {
    shared().lock.take();
}

extern "C" fn in_parent() {
    shared().lock.release();
}

/// Of all threads the calling one is left; it begins anew, under its new number.
extern "C" fn in_child() {
    let shared = shared();
    let parent_pid = shared.pid();
    let (pid, tid) = ids();
    shared.set_pid(pid);
    lifeline::hold(&shared.config.folder);
    let me = current();
    // SAFETY: the lock is held since before the fork.
    let locked = unsafe { shared.held() };
    // A parent that ends, or becomes another program, has forgotten us.
    locked.live.clear();
    locked.live.extend((!me.is_null()).then_some(me));
    if let Some(tallies) = &mut locked.tallies {
        tallies.begin_anew(&shared.link, pid);
    }
    shared.lock.release();
    keep_only(me);
    ring::forked();
    ending::forked();
    taken::forked();
    // whoever had it is not in this process
    turn::give_back();
    if me.is_null() {
        return;
    }
    // SAFETY: our own thread, which is in the fork system call.
    let thread = unsafe { &mut *me };
    let (parent, was) = (thread.tid, thread.now());
    *thread = threads::new(shared, thread.cpu, tid);
    thread.mode.store(KERNEL, Ordering::Relaxed);
    thread.raise(shared.clock.latest().max(was) + shared.clock.tick);
    shared.clock.publish(thread.now());
    threads::announce(shared, thread, parent, parent_pid);
    shared.with(|locked| thread.aim(&locked.ranges));
    thread.watch();
}
