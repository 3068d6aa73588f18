//! What the threads of the process share: what never changes, and the rest under a lock.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use crate::failure::die;
use crate::interface::api::Api;
use crate::shared::clock::SharedClock;
use crate::shared::config::Config;
use crate::shared::handlers::Handlers;
use crate::shared::link::{Link, Message};
use crate::shared::ranges::Ranges;
use crate::shared::space::Space;
use crate::shared::tally::Tallies;
use crate::shared::window::Points;
use crate::thread::block::Block;
use crate::thread::state::{Legacy, Thread};

static SHARED: OnceLock<Shared> = OnceLock::new();

pub(crate) struct Shared {
    pub(crate) api: Api,
    pub(crate) config: Config,
    pub(crate) link: Link,
    pub(crate) clock: SharedClock,
    pid: AtomicU32,
    pub(crate) lock: Lock,
    locked: UnsafeCell<Locked>,
}

/// What is under the lock.
#[derive(Default)]
pub(crate) struct Locked {
    pub(super) space: Space,
    pub(crate) handlers: Handlers,
    pub(super) blocks: HashMap<u64, Vec<&'static Block>>,
    pub(crate) ranges: Ranges,
    pub(crate) points: Points,
    /// Where blocks are counted.
    pub(crate) tallies: Option<Tallies>,
    pub(crate) live: Vec<*mut Thread>,
    /// The thread that made one last.
    pub(crate) creator: u32,
    /// That of the first thread, when it has ended.
    pub(crate) leaders: Legacy,
}

// SAFETY: `locked` is reached with the lock held; all else is immutable or atomic.
unsafe impl Sync for Shared {}
// SAFETY: see above; the raw pointers in it are to threads, which are never freed.
unsafe impl Send for Shared {}

/// A lock that fork can hold over.
pub(crate) struct Lock(UnsafeCell<libc::pthread_mutex_t>);

/// Set up by `Shared::begin`, before any callback.
#[inline(always)]
pub(crate) fn shared() -> &'static Shared {
    match SHARED.get() {
        Some(shared) => shared,
        None => die("QEMU called before the plugin was set up"),
    }
}

/// Process and thread, by the kernel's numbers.
pub(crate) fn ids() -> (u32, u32) {
    // SAFETY: no arguments, no failure.
    unsafe { (libc::getpid() as u32, libc::gettid() as u32) }
}

impl Shared {
    /// Sets up what `shared` gives from now on; a sentence if that has been done.
    pub(crate) fn begin(
        api: Api,
        config: Config,
        link: Link,
        clock: SharedClock,
    ) -> Result<&'static Shared, String> {
        let locked = Locked {
            ranges: Ranges::new(&config.filters),
            space: Space::new(config.recorder.clone()),
            ..Locked::default()
        };
        let new = Shared {
            api,
            config,
            link,
            clock,
            pid: AtomicU32::new(ids().0),
            lock: Lock(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)),
            locked: UnsafeCell::new(locked),
        };
        match SHARED.set(new) {
            Ok(()) => Ok(shared()),
            Err(_) => Err("the plugin was loaded twice".to_string()),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// A fork has made another process of this one.
    pub(crate) fn set_pid(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    pub(crate) fn send(&self, message: Message, blob: &[u8]) {
        self.link.send(message, blob);
    }

    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Locked) -> T) -> T {
        self.lock.take();
        // SAFETY: the lock is held, and `work` cannot get here again without a deadlock.
        let result = work(unsafe { self.held() });
        self.lock.release();
        result
    }

    /// # Safety
    /// The calling thread holds the lock, and has no other reference from here.
    #[allow(clippy::mut_from_ref)] // The lock sees to it that there is one.
    pub(crate) unsafe fn held(&self) -> &mut Locked {
        &mut *self.locked.get()
    }

    /// All threads look at something at their next block.
    pub(crate) fn alert(&self, what: u32) {
        self.with(|locked| {
            for &thread in &locked.live {
                // SAFETY: threads are never freed; the field is atomic.
                unsafe { (*thread).attention.fetch_or(what, Ordering::AcqRel) };
            }
        });
    }
}

impl Lock {
    pub(crate) fn take(&self) {
        // SAFETY: an initialized mutex.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    pub(crate) fn release(&self) {
        // SAFETY: as above, taken by this thread.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}
