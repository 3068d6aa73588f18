//! The state that all threads of the process share: an immutable part, and a part under a lock; the words in a file
//! that the recorder and all recorded processes map; the recorded thread of each vCPU, and of the calling host thread.

use std::cell::{Cell, UnsafeCell};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

use rtit_events::EventKind;

use crate::fatal_error::exit_with_error;
use crate::interface::plugin_api::PluginApi;
use crate::shared::block_counters::BlockCounters;
use crate::shared::config::RecordingConfig;
use crate::shared::recorder_link::{new_message, Message, RecorderLink};
use crate::shared::reported_code::ReportedCode;
use crate::shared::signal_frames::SignalHandlers;
use crate::shared::trace_selection::{EdgeAddresses, ProcessRanges};
use crate::thread::thread_state::{RecordedThread, StateKeptOverExec};
use crate::thread::translation_block::{TranslationBlock, OUTSIDE};

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
    pub(crate) live_threads: Vec<*mut RecordedThread>,
    /// The thread that will be the parent of the next new thread.
    pub(crate) parent_of_next: u32,
    /// The state that the first thread left when it ended.
    pub(crate) first_thread_state: StateKeptOverExec,
}

// SAFETY: `locked` is reached with the lock held; all else is immutable or atomic.
unsafe impl Sync for SharedState {}
// SAFETY: see above; the raw pointers in it are to threads, which are never freed.
unsafe impl Send for SharedState {}

/// A mutex that stays locked over a fork.
pub(crate) struct ForkLock(UnsafeCell<libc::pthread_mutex_t>);

/// Returns the state. `SharedState::initialize` runs before any callback.
#[inline(always)]
pub(crate) fn shared_state() -> &'static SharedState {
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
    pub(crate) fn initialize_shared_state(
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
            Ok(()) => Ok(shared_state()),
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

    pub(crate) fn send_message(&self, message: Message, blob: &[u8]) {
        self.link.send_message(message, blob);
    }

    /// Sends a warning of a thread.
    pub(crate) fn send_warning(&self, tid: u32, clock: u64, text: &str) {
        self.send_message(new_message(EventKind::Warning, tid, clock), text.as_bytes());
    }

    pub(crate) fn with_locked<T>(&self, work: impl FnOnce(&mut LockedState) -> T) -> T {
        self.lock.lock_mutex();
        // SAFETY: the lock is held, and `work` cannot get here again without a deadlock.
        let result = work(unsafe { self.locked_by_caller() });
        self.lock.unlock_mutex();
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
    pub(crate) fn lock_mutex(&self) {
        // SAFETY: an initialized mutex.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    pub(crate) fn unlock_mutex(&self) {
        // SAFETY: as above, taken by this thread.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

/// The latest published clock of any thread, the recorder's requests, and the phase of the recording window (see
/// `trace_selection`).
#[repr(C)]
struct SharedWords {
    clock: AtomicU64,
    flush_requests: AtomicU64,
    phase: AtomicU64,
    /// Retired instructions of all threads, and their number at the start of the window.
    retired: AtomicU64,
    retired_at_start: AtomicU64,
}

pub(crate) struct SharedClock {
    words: &'static SharedWords,
    /// Instructions after which the TSC has certainly advanced.
    pub(crate) tsc_tick: u64,
}

impl SharedClock {
    pub(crate) fn open_shared_clock(path: &Path, tsc_tick: u64) -> io::Result<SharedClock> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let size = std::mem::size_of::<SharedWords>();
        if file.metadata()?.len() < size as u64 {
            return Err(io::Error::other("the clock's file is too short"));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that is long enough; it is never unmapped, and page aligned.
        let words = unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                size,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            &*at.cast::<SharedWords>()
        };
        Ok(SharedClock { words, tsc_tick })
    }

    pub(crate) fn latest_clock(&self) -> u64 {
        self.words.clock.load(Ordering::SeqCst)
    }

    pub(crate) fn publish_clock(&self, clock: u64) {
        self.words.clock.fetch_max(clock, Ordering::SeqCst);
    }

    /// Returns a number that grows when the recorder wants threads to send what they hold back.
    pub(crate) fn flush_requests(&self) -> u64 {
        self.words.flush_requests.load(Ordering::Relaxed) >> 1
    }

    /// Returns whether the recorder takes no more packets.
    pub(crate) fn is_recording_full(&self) -> bool {
        self.words.flush_requests.load(Ordering::Relaxed) & 1 == 1
    }

    pub(crate) fn window_phase(&self) -> u64 {
        self.words.phase.load(Ordering::SeqCst)
    }

    /// Ends the phase `more` instructions after those that have been counted. False if another thread has ended it.
    pub(crate) fn end_window_phase(&self, phase: u64, more: u64) -> bool {
        let words = self.words;
        let retired = words.retired.load(Ordering::SeqCst) + more;
        let order = Ordering::SeqCst;
        if phase == 0 {
            // The first value counts; the phase is published after it.
            let _ = words
                .retired_at_start
                .compare_exchange(0, retired, order, order);
        }
        let next = phase + 1;
        let left = words.phase.compare_exchange(phase, next, order, order);
        left.is_ok() || phase == 1 && words.phase.swap(next, order) == 0
    }

    pub(crate) fn retired_at_start(&self) -> u64 {
        self.words.retired_at_start.load(Ordering::SeqCst)
    }

    /// Adds retired instructions and returns the total.
    pub(crate) fn add_retired(&self, more: u64) -> u64 {
        self.words.retired.fetch_add(more, Ordering::SeqCst) + more
    }
}

/// Indices of vCPUs are reused, and the kernel allows no more threads.
const VCPUS: usize = 1 << 16;
#[allow(clippy::declare_interior_mutable_const)] // only the array is ever used
const NO_THREAD: AtomicPtr<RecordedThread> = AtomicPtr::new(std::ptr::null_mut());
static THREADS: [AtomicPtr<RecordedThread>; VCPUS] = [NO_THREAD; VCPUS];
/// One more than the highest vCPU that has had a thread.
static USED_VCPUS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CURRENT: Cell<*mut RecordedThread> = const { Cell::new(std::ptr::null_mut()) };
}

/// The process's first thread. Generated code contains its address.
pub(crate) static FIRST_THREAD: FirstThread = FirstThread(UnsafeCell::new(MaybeUninit::uninit()));

#[repr(transparent)]
pub(crate) struct FirstThread(UnsafeCell<MaybeUninit<RecordedThread>>);

// SAFETY: only the thread itself uses it.
unsafe impl Sync for FirstThread {}

impl FirstThread {
    /// Marks the thread as outside of user code. Call it before any callback.
    pub(crate) fn mark_outside_user_code(&self) {
        let thread: *mut RecordedThread = self.0.get().cast();
        // SAFETY: no other thread exists; the field has no value that would have to be dropped.
        unsafe { std::ptr::addr_of_mut!((*thread).block).write(&OUTSIDE) };
    }

    /// Stores the thread when it starts.
    pub(crate) fn store_first_thread(&self, thread: RecordedThread) -> *mut RecordedThread {
        // SAFETY: once, by the thread itself.
        unsafe { (*self.0.get()).write(thread) }
    }
}

/// Whether the process has had more than one thread. QEMU translates all blocks again for the second one.
static MULTITHREADED: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_multithreaded() -> bool {
    MULTITHREADED.load(Ordering::Relaxed)
}

pub(crate) fn set_multithreaded() {
    MULTITHREADED.store(true, Ordering::Relaxed);
}

/// Returns the thread of a vCPU; null before its first block.
#[inline(always)]
pub(crate) fn thread_of(vcpu: u32) -> *mut RecordedThread {
    match THREADS.get(vcpu as usize) {
        Some(thread) => thread.load(Ordering::Relaxed),
        None => exit_with_error("more threads than the plugin can record"),
    }
}

/// Returns the calling thread; null outside of the program's threads.
pub(crate) fn current_thread() -> *mut RecordedThread {
    CURRENT.get()
}

/// Sets the thread of a vCPU, which is the calling one; null when it ends.
pub(crate) fn set_thread(vcpu: u32, thread: *mut RecordedThread) {
    if let Some(slot) = THREADS.get(vcpu as usize) {
        USED_VCPUS.fetch_max(vcpu as usize + 1, Ordering::Relaxed);
        slot.store(thread, Ordering::Relaxed);
    }
    CURRENT.set(thread);
}

/// Removes all threads but this one.
pub(crate) fn keep_only_thread(thread: *mut RecordedThread) {
    // In the unused part of the array, each page that is touched is a page fault.
    for slot in THREADS.iter().take(USED_VCPUS.load(Ordering::Relaxed)) {
        if slot.load(Ordering::Relaxed) != thread {
            slot.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
    }
}
