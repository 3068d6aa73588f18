//! The recorded process: its threads, its code, its handlers, and how it begins, forks and ends.

use std::cell::{Cell, UnsafeCell};
use std::collections::HashMap;
use std::sync::atomic::{fence, AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rtit_unit::Unit;

use crate::api::Api;
use crate::block::{Block, HANDLER};
use crate::clock::SharedClock;
use crate::config::{Config, Legacy, Truth};
use crate::cpu::State;
use crate::defaults;
use crate::lifeline;
use crate::link::{Kind, Link, Message};
use crate::privilege;
use crate::ranges::Ranges;
use crate::signals::{is_fault, Handlers};
use crate::space::{Change, Mapped, Space};
use crate::thread::{Thread, CLAIMED, KERNEL, PARKED, STOP, SWITCH, USER};
use crate::truth::Path;
use crate::window::Points;

/// vCPU indices are reused, and no more threads than this can exist.
const VCPUS: usize = 1 << 16;
/// How far another thread may come between a look at its clock and its next block.
const AHEAD: u64 = 4096;
/// How long the end of a process waits for its other threads.
const PATIENCE: Duration = Duration::from_secs(2);
/// After this time a thread that QEMU stopped is not about to enter or leave a system call.
const EXCLUDED: Duration = Duration::from_millis(50);

static PROCESS: OnceLock<Process> = OnceLock::new();
#[allow(clippy::declare_interior_mutable_const)] // only the array is ever used
const NO_THREAD: AtomicPtr<Thread> = AtomicPtr::new(std::ptr::null_mut());
static THREADS: [AtomicPtr<Thread>; VCPUS] = [NO_THREAD; VCPUS];

thread_local! {
    static CURRENT: Cell<*mut Thread> = const { Cell::new(std::ptr::null_mut()) };
}

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

fn ids() -> (u32, u32) {
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

    fn announce(&self, thread: &Thread, parent: u32, parent_pid: u32) {
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

    // Code

    /// A block was translated: it is told to the recorder as far as needed, and kept.
    pub(crate) fn translated(&self, block: Block) -> &'static Block {
        self.with(|shared| {
            let changes = shared.space.translated(block.start, &block.code);
            if !changes.is_empty() {
                self.tell(shared, changes);
            }
            let same = |known: &&&Block| known.code == block.code && known.count == block.count;
            let handler = shared.handlers.start_at(block.start);
            let known = shared.blocks.entry(block.start).or_default();
            if let Some(known) = known.iter().find(same) {
                return *known;
            }
            let block: &'static Block = Box::leak(Box::new(block));
            if handler {
                block.marks.fetch_or(HANDLER, Ordering::Relaxed);
            }
            shared.points.mark(block);
            known.push(block);
            block
        })
    }

    fn tell(&self, shared: &mut Shared, changes: Vec<Change>) {
        // Whatever a thread executes before its next switch is older than the change; what comes after is not.
        let me = current();
        let mut time = self.clock.latest();
        for &thread in &shared.live {
            // SAFETY: threads are never freed, and these two fields are atomic.
            let (attention, clock) = unsafe { (&(*thread).attention, &(*thread).clock) };
            attention.fetch_or(SWITCH, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            let ahead = if thread == me { 600 } else { AHEAD };
            time = time.max(clock.load(Ordering::Relaxed) + ahead);
        }
        time += self.clock.tick;
        self.clock.publish(time);
        // SAFETY: our own thread, which is in a callback.
        let tid = if me.is_null() {
            ids().1
        } else {
            unsafe { (*me).tid }
        };
        for change in changes {
            match change {
                Change::Mapped(mapped) => {
                    shared.ranges.mapped(&self.config.filters, &mapped);
                    shared.points.mapped(&self.config.window, &mapped);
                    self.tell_mapped(tid, time, &mapped);
                }
                Change::Code(address, bytes) => {
                    let mut message = Message::new(Kind::Code, tid, time);
                    message.ip = address;
                    message.extra = self.pid().into();
                    self.send(message, &bytes);
                }
            }
        }
    }

    fn tell_mapped(&self, tid: u32, time: u64, mapped: &Mapped) {
        let mut message = Message::new(Kind::Mmap, tid, time);
        message.ip = mapped.start;
        message.target = mapped.end - mapped.start;
        message.extra = self.pid().into();
        let rights = (libc::PROT_READ | libc::PROT_EXEC) as u32;
        let mut blob = mapped.offset.to_le_bytes().to_vec();
        for word in [rights, libc::MAP_PRIVATE as u32, mapped.major, mapped.minor] {
            blob.extend(word.to_le_bytes());
        }
        blob.extend(mapped.inode.to_le_bytes());
        blob.extend([0; 8]);
        blob.extend(&mapped.path);
        blob.push(0);
        self.send(message, &blob);
    }

    /// Mappings from `start` on are gone or others.
    pub(crate) fn unmapped(&self, start: u64, size: u64) {
        self.with(|shared| shared.space.forget(start, size));
    }

    /// rt_sigaction is about to install the action at `action`.
    pub(crate) fn install_handler(&self, signal: u64, action: u64) {
        self.with(|shared| {
            if let Some(handler) = shared.handlers.install(signal, action) {
                for block in shared.blocks.get(&handler.address).into_iter().flatten() {
                    block.marks.fetch_or(HANDLER, Ordering::Relaxed);
                }
            }
        });
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

    // The end

    /// All threads but the calling one end where they are.
    pub(crate) fn stop_others(&self, status: u32) {
        self.stop_each(false, |thread| thread.end(status));
    }

    /// The process is about to run another program, in its first thread. What that one leaves.
    pub(crate) fn leave_for_exec(&self, thread: &mut Thread) -> Legacy {
        let pid = self.pid();
        let mut legacy = self.with(|shared| shared.leaders);
        self.stop_each(false, |other| {
            if other.tid == pid {
                legacy = other.leave_for_exec();
            } else {
                other.end(0);
            }
        });
        if thread.tid == pid {
            return thread.leave_for_exec();
        }
        thread.end(0);
        legacy
    }

    /// The process dies of a signal, in this thread.
    pub(crate) fn killed(&self, thread: &mut Thread, signal: i32) {
        thread.interrupt_where_it_is(is_fault(signal));
        self.stop_each(dumps_core(signal), |other| other.end(signal as u32));
        thread.end(signal as u32);
    }

    /// Every other thread stops, and `work` is done with each. `excluded`: QEMU has stopped them already, between two
    /// blocks, unless they are in a system call.
    fn stop_each(&self, excluded: bool, mut work: impl FnMut(&mut Thread)) {
        let me = current();
        self.ending.store(true, Ordering::SeqCst);
        let others: Vec<*mut Thread> = self.with(|shared| {
            let others = shared
                .live
                .iter()
                .copied()
                .filter(|&thread| thread != me)
                .collect();
            shared.live.retain(|&thread| thread == me);
            others
        });
        for &thread in &others {
            // SAFETY: threads are never freed; the field is atomic.
            unsafe { (*thread).attention.fetch_or(STOP, Ordering::AcqRel) };
        }
        let begun = Instant::now();
        for &thread in &others {
            // SAFETY: as above.
            let mode = unsafe { &(*thread).mode };
            loop {
                let claimed =
                    mode.compare_exchange(KERNEL, CLAIMED, Ordering::AcqRel, Ordering::Acquire);
                if claimed.is_ok() || mode.load(Ordering::Acquire) == PARKED {
                    // SAFETY: it has stopped and does not touch its state any more.
                    work(unsafe { &mut *thread });
                    break;
                }
                if excluded && begun.elapsed() > EXCLUDED {
                    // SAFETY: QEMU keeps it from running until the process is gone.
                    let thread = unsafe { &mut *thread };
                    thread.interrupt_where_it_is(false);
                    work(thread);
                    break;
                }
                if begun.elapsed() > PATIENCE {
                    // SAFETY: the tid never changes.
                    let message =
                        Message::new(Kind::Warning, unsafe { (*thread).tid }, self.clock.latest());
                    self.send(
                        message,
                        b"a thread ran on while its process ended: its end is missing",
                    );
                    break;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// The calling thread has stopped in user code before the instruction at `ip`, until the process ends.
    pub(crate) fn park(&self, thread: &mut Thread, ip: u64) -> ! {
        thread.stop_at(ip);
        thread.mode.store(PARKED, Ordering::Release);
        wait_for_the_end()
    }

    /// A system call is over; if another thread ended the process meanwhile, so is this thread.
    pub(crate) fn leave_kernel(&self, thread: *mut Thread) {
        // SAFETY: the field is atomic.
        let mode = unsafe { &(*thread).mode };
        if mode
            .compare_exchange(KERNEL, USER, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            wait_for_the_end();
        }
    }

    /// The first thread has ended.
    pub(crate) fn keep_leaders(&self, legacy: Legacy) {
        self.with(|shared| shared.leaders = legacy);
    }
}

/// Signals for which QEMU stops all threads before it ends the process.
fn dumps_core(signal: i32) -> bool {
    use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGTRAP};
    [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGTRAP].contains(&signal)
}

fn wait_for_the_end() -> ! {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
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

extern "C" fn before_fork() {
    process().lock.take();
}

extern "C" fn in_parent() {
    process().lock.release();
}

/// Of all threads the calling one is left; it begins anew, under its new number.
extern "C" fn in_child() {
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
