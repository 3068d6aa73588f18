//! The process's threads: which runs where, how one begins and is forgotten.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::config::Truth;
use crate::cpu::State;
use crate::defaults;
use crate::link::Kind;
use crate::process::ending::wait_for_the_end;
use crate::process::{ids, Process};
use crate::thread::Thread;
use crate::truth::Path;

/// vCPU indices are reused, and no more threads than this can exist.
const VCPUS: usize = 1 << 16;
#[allow(clippy::declare_interior_mutable_const)] // only the array is ever used
const NO_THREAD: AtomicPtr<Thread> = AtomicPtr::new(std::ptr::null_mut());
pub(super) static THREADS: [AtomicPtr<Thread>; VCPUS] = [NO_THREAD; VCPUS];

thread_local! {
    static CURRENT: Cell<*mut Thread> = const { Cell::new(std::ptr::null_mut()) };
}

/// The thread that runs on a vCPU; null before its first block.
#[inline(always)]
pub(crate) fn thread_of(vcpu: u32) -> *mut Thread {
    match THREADS.get(vcpu as usize) {
        Some(thread) => thread.load(Ordering::Relaxed),
        None => crate::die("more threads than the plugin can record"),
    }
}

/// The thread that runs here; null outside of the program's threads.
pub(crate) fn current() -> *mut Thread {
    CURRENT.get()
}

impl Process {
    /// The first block of a thread: it is new, or exec or fork left it over.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin(&self, vcpu: u32, state: *const State) -> *mut Thread {
        if self.ending.load(Ordering::SeqCst) {
            wait_for_the_end();
        }
        let (pid, tid) = ids();
        let mut thread = Box::new(Thread::new(self, self.new_unit(), state, tid));
        thread.raise(self.clock.latest() + self.clock.tick);
        self.clock.publish(thread.now());
        let parent = self.with(|shared| shared.creator);
        if parent == 0 {
            defaults::catch_all();
            thread.inherit(self.config.legacy);
        }
        self.announce(&thread, parent, pid);
        let thread = Box::into_raw(thread);
        if let Some(place) = THREADS.get(vcpu as usize) {
            place.store(thread, Ordering::Relaxed);
        }
        CURRENT.set(thread);
        self.with(|shared| {
            shared.live.push(thread);
            // SAFETY: our own thread. Ranges that come later come with a switch.
            unsafe { (*thread).aim(&shared.ranges) };
        });
        // SAFETY: as above.
        unsafe { (*thread).watch() };
        thread
    }

    pub(super) fn announce(&self, thread: &Thread, parent: u32, parent_pid: u32) {
        let mut message = thread.message(Kind::Thread);
        message.target = parent.into();
        message.extra = parent_pid.into();
        self.send(message, &[]);
        if thread.truth != Truth::None {
            let record = Path::thread(thread.tid, self.pid());
            self.send(thread.message(Kind::Truth), &record);
        }
    }

    /// The next new thread is `creator`'s.
    pub(crate) fn expect_thread(&self, creator: u32) {
        self.with(|shared| shared.creator = creator);
    }

    /// A vCPU's thread has ended.
    pub(crate) fn forget_thread(&self, vcpu: u32, thread: *mut Thread) {
        self.with(|shared| shared.live.retain(|&live| live != thread));
        if let Some(place) = THREADS.get(vcpu as usize) {
            place.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
        CURRENT.set(std::ptr::null_mut());
        // The thread's memory stays: another thread may be looking at its clock.
    }

    /// All threads look at something at their next block.
    pub(crate) fn alert(&self, what: u32) {
        self.with(|shared| {
            for &thread in &shared.live {
                // SAFETY: threads are never freed; the field is atomic.
                unsafe { (*thread).attention.fetch_or(what, Ordering::AcqRel) };
            }
        });
    }
}
