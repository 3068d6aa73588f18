//! The state that all threads of the process share: an immutable part, and a part under a lock.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use crate::fatal_error::exit_with_error;
use crate::interface::plugin_api::PluginApi;
use crate::shared::block_counters::BlockCounters;
use crate::shared::config::RecordingConfig;
use crate::shared::recorder_link::{Message, RecorderLink};
use crate::shared::reported_code::ReportedCode;
use crate::shared::shared_clock::SharedClock;
use crate::shared::signal_frames::SignalHandlers;
use crate::shared::trace_selection::EdgeAddresses;
use crate::shared::trace_selection::ProcessRanges;
use crate::thread::thread_state::{InheritedState, Thread};
use crate::thread::translation_block::TranslationBlock;

static SHARED: OnceLock<SharedState> = OnceLock::new();

pub(crate) struct SharedState {
    pub(crate) api: PluginApi,
    pub(crate) config: RecordingConfig,
    pub(crate) link: RecorderLink,
    pub(crate) clock: SharedClock,
    pid: AtomicU32,
    pub(crate) lock: ForkLock,
    locked: UnsafeCell<LockedState>,
}

/// The part under the lock.
#[derive(Default)]
pub(crate) struct LockedState {
    pub(super) code: ReportedCode,
    pub(crate) handlers: SignalHandlers,
    pub(super) blocks: HashMap<u64, Vec<&'static TranslationBlock>>,
    pub(crate) ranges: ProcessRanges,
    pub(crate) edge_addresses: EdgeAddresses,
    /// If blocks are counted.
    pub(crate) counters: Option<BlockCounters>,
    pub(crate) live_threads: Vec<*mut Thread>,
    /// The thread that will be the parent of the next new thread.
    pub(crate) parent_of_next: u32,
    /// The state that the first thread left when it ended.
    pub(crate) first_thread_state: InheritedState,
}

// SAFETY: `locked` is reached with the lock held; all else is immutable or atomic.
unsafe impl Sync for SharedState {}
// SAFETY: see above; the raw pointers in it are to threads, which are never freed.
unsafe impl Send for SharedState {}

/// A mutex that stays locked over a fork.
pub(crate) struct ForkLock(UnsafeCell<libc::pthread_mutex_t>);

/// Returns the state. `SharedState::initialize` runs before any callback.
#[inline(always)]
pub(crate) fn shared() -> &'static SharedState {
    match SHARED.get() {
        Some(shared) => shared,
        None => exit_with_error("QEMU called before the plugin was set up"),
    }
}

/// Returns the kernel's process and thread number.
pub(crate) fn process_and_thread_id() -> (u32, u32) {
    // SAFETY: no arguments, no failure.
    unsafe { (libc::getpid() as u32, libc::gettid() as u32) }
}

impl SharedState {
    /// Initializes the state; fails with a sentence if that has been done.
    pub(crate) fn initialize(
        api: PluginApi,
        config: RecordingConfig,
        link: RecorderLink,
        clock: SharedClock,
    ) -> Result<&'static SharedState, String> {
        let locked = LockedState {
            ranges: ProcessRanges::new(&config.filters),
            code: ReportedCode::new(config.recorder.clone()),
            ..LockedState::default()
        };
        let new = SharedState {
            api,
            config,
            link,
            clock,
            pid: AtomicU32::new(process_and_thread_id().0),
            lock: ForkLock(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)),
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

    /// Sets the number of the process in a forked child.
    pub(crate) fn set_pid(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    pub(crate) fn send(&self, message: Message, blob: &[u8]) {
        self.link.send(message, blob);
    }

    pub(crate) fn with_locked<T>(&self, work: impl FnOnce(&mut LockedState) -> T) -> T {
        self.lock.acquire();
        // SAFETY: the lock is held, and `work` cannot get here again without a deadlock.
        let result = work(unsafe { self.locked_by_caller() });
        self.lock.release();
        result
    }

    /// Returns the part under the lock to a thread that holds it.
    ///
    /// # Safety
    /// The calling thread holds the lock, and has no other reference to this part.
    #[allow(clippy::mut_from_ref)] // The lock sees to it that there is one.
    pub(crate) unsafe fn locked_by_caller(&self) -> &mut LockedState {
        &mut *self.locked.get()
    }

    /// Sets bits in the `attention` of all threads, which see them at their next block.
    pub(crate) fn request_attention(&self, what: u32) {
        self.with_locked(|locked| {
            for &thread in &locked.live_threads {
                // SAFETY: threads are never freed; the field is atomic.
                unsafe { (*thread).attention.fetch_or(what, Ordering::AcqRel) };
            }
        });
    }
}

impl ForkLock {
    pub(crate) fn acquire(&self) {
        // SAFETY: an initialized mutex.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    pub(crate) fn release(&self) {
        // SAFETY: as above, taken by this thread.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}
