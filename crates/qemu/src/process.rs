//! The recorded process: what its threads share, and how it begins.

mod code;
mod ending;
mod fork;
mod threads;

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::OnceLock;

use rtit_unit::Unit;

use crate::api::Api;
use crate::block::Block;
use crate::clock::SharedClock;
use crate::config::{Config, Legacy};
use crate::lifeline;
use crate::link::{Kind, Link, Message};
use crate::privilege;
use crate::ranges::Ranges;
use crate::signals::Handlers;
use crate::space::Space;
use crate::thread::Thread;
use crate::window::Points;

use fork::{before_fork, in_child, in_parent};
pub(crate) use threads::{current, thread_of};

static PROCESS: OnceLock<Process> = OnceLock::new();

/// What threads share under the lock.
#[derive(Default)]
pub(crate) struct Shared {
    space: Space,
    pub(crate) handlers: Handlers,
    blocks: HashMap<u64, Vec<&'static Block>>,
    pub(crate) ranges: Ranges,
    pub(crate) points: Points,
    live: Vec<*mut Thread>,
    /// The thread that made one last.
    creator: u32,
    /// That of the first thread, when it has ended.
    leaders: Legacy,
}

pub(crate) struct Process {
    pub(crate) api: Api,
    pub(crate) config: Config,
    pub(crate) link: Link,
    pub(crate) clock: SharedClock,
    pid: AtomicU32,
    /// No thread may begin any more.
    ending: AtomicBool,
    lock: Lock,
    shared: UnsafeCell<Shared>,
}

// SAFETY: `shared` is reached with the lock held; all else is immutable or atomic.
unsafe impl Sync for Process {}
// SAFETY: see above; the raw pointers in it are to threads, which are never freed.
unsafe impl Send for Process {}

/// A lock that fork can hold over.
struct Lock(UnsafeCell<libc::pthread_mutex_t>);

/// Set up by `start`, before any callback.
#[inline(always)]
pub(crate) fn process() -> &'static Process {
    match PROCESS.get() {
        Some(process) => process,
        None => crate::die("QEMU called before the plugin was set up"),
    }
}

/// Connects to the recorder and tells of the program.
pub(crate) fn start(api: Api, config: Config) -> Result<(), String> {
    let link =
        Link::connect(&config.folder).map_err(|error| format!("no recorder answers: {error}"))?;
    lifeline::hold(&config.folder);
    let clock = SharedClock::open(&config.folder.join("clock"), config.tick())
        .map_err(|error| format!("clock: {error}"))?;
    let (pid, tid) = ids();
    let shared = Shared {
        ranges: Ranges::new(&config.filters),
        ..Shared::default()
    };
    let process = Process {
        api,
        config,
        link,
        clock,
        pid: AtomicU32::new(pid),
        ending: AtomicBool::new(false),
        lock: Lock(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)),
        shared: UnsafeCell::new(shared),
    };
    if PROCESS.set(process).is_err() {
        return Err("the plugin was loaded twice".to_string());
    }
    let process = self::process();
    let now = process.clock.latest() + process.clock.tick;
    process.clock.publish(now);
    for (kind, blob) in [
        (Kind::Exec, &process.config.program),
        (Kind::Comm, &process.config.comm),
    ] {
        let mut message = Message::new(kind, tid, now);
        message.ip = pid.into();
        message.flags = 1;
        process.send(message, blob);
    }
    if let Some(warning) = privilege::warning(&process.config.program) {
        process.send(Message::new(Kind::Warning, tid, now), warning.as_bytes());
    }
    // SAFETY: the handlers are functions without arguments.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    Ok(())
}

pub(crate) fn ids() -> (u32, u32) {
    // SAFETY: no arguments, no failure.
    unsafe { (libc::getpid() as u32, libc::gettid() as u32) }
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    pub(crate) fn send(&self, message: Message, blob: &[u8]) {
        self.link.send(message, blob);
    }

    pub(crate) fn new_unit(&self) -> Unit {
        match Unit::new(&self.config.settings) {
            Ok(unit) => unit,
            Err(error) => crate::die(&error.to_string()),
        }
    }

    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Shared) -> T) -> T {
        self.lock.take();
        // SAFETY: the lock is held, and `work` cannot get here again without a deadlock.
        let result = work(unsafe { &mut *self.shared.get() });
        self.lock.release();
        result
    }
}

impl Lock {
    fn take(&self) {
        // SAFETY: an initialized mutex.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    fn release(&self) {
        // SAFETY: as above, taken by this thread.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}
