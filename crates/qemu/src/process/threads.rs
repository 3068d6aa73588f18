//! How a thread begins and is forgotten.

use rtit_unit::Unit;

use crate::events::look::look;
use crate::events::tally;
use crate::failure::die;
use crate::interface::cpu::{Cpu, State};
use crate::interface::{defaults, taken};
use crate::process::ending::wait_if_ending;
use crate::process::faults;
use crate::shared::link::Kind;
use crate::shared::state::{ids, shared, Shared};
use crate::shared::threads::{set, FIRST};
use crate::thread::path::Path;
use crate::thread::state::{Thread, Wanted};
use crate::thread::watch::{Watch, NEVER};

/// A thread that is about to begin, at clock 0.
pub(super) fn new(shared: &Shared, cpu: Cpu, tid: u32) -> Thread {
    let config = &shared.config;
    let unit = match Unit::new(&config.settings) {
        Ok(unit) => unit,
        Err(error) => die(&error.to_string()),
    };
    let wanted = Wanted {
        truth: config.truth,
        joined: config.joined,
        snapshot: config.snapshot,
        look,
    };
    let phase = if config.counts() {
        NEVER
    } else {
        config.window.first_phase()
    };
    let mut thread = Thread::new(wanted, Watch::new(phase), unit, cpu, tid);
    thread.tally = tally::table(shared, tid);
    thread.asked = shared.clock.asked();
    thread
}

/// The first block of a thread: it is new, or exec or fork left it over.
#[cold]
#[inline(never)]
pub(crate) fn begin(vcpu: u32, state: *const State) -> *mut Thread {
    wait_if_ending();
    let shared = shared();
    let (pid, tid) = ids();
    let mut thread = new(shared, Cpu::new(state), tid);
    thread.raise(shared.clock.latest() + shared.clock.tick);
    shared.clock.publish(thread.now());
    let parent = shared.with(|locked| locked.creator);
    if parent == 0 {
        defaults::catch_all();
        faults::watch();
        taken::watch();
        thread.inherit(shared.config.legacy);
    }
    announce(shared, &thread, parent, pid);
    let thread = if parent == 0 {
        FIRST.begin(thread)
    } else {
        Box::into_raw(Box::new(thread))
    };
    set(vcpu, thread);
    shared.with(|locked| {
        locked.live.push(thread);
        // SAFETY: our own thread. Ranges that come later come with a switch.
        unsafe { (*thread).aim(&locked.ranges) };
    });
    // SAFETY: as above.
    unsafe { (*thread).watch() };
    thread
}

pub(super) fn announce(shared: &Shared, thread: &Thread, parent: u32, parent_pid: u32) {
    let mut message = thread.message(Kind::Thread);
    message.target = parent.into();
    message.extra = parent_pid.into();
    shared.send(message, &[]);
    if thread.truth.is_told() {
        let record = Path::thread(thread.tid, shared.pid());
        shared.send(thread.message(Kind::Truth), &record);
    }
}

/// The next new thread is `creator`'s.
pub(crate) fn expect(creator: u32) {
    shared().with(|locked| locked.creator = creator);
}

/// A vCPU's thread has ended.
pub(crate) fn forget(vcpu: u32, thread: *mut Thread) {
    shared().with(|locked| locked.live.retain(|&live| live != thread));
    set(vcpu, std::ptr::null_mut());
    // The thread's memory stays: another thread may be looking at its clock.
}
