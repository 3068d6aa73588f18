//! The life of the process and of its threads, from QEMU's start to the end of the last thread.
//!
//! * The process starts, a thread starts, a thread forks. The lock stays held over a fork; the child starts a recording
//!   of its own.
//! * A thread goes on to its next block, whatever that block is (`follow_thread_to_block`).
//! * All threads stop where they are: by exit, a deadly signal or an exec.
//! * The process dies with its recorder, as a traced program dies with its tracer. A thread that sends notices a dead
//!   recorder itself, but one that waits in the kernel would wait on. The recorder therefore holds a named pipe open
//!   for writing. Each process holds it open for reading and has asked for SIGKILL on any event of it (F_SETSIG).
//!   Nothing is ever written, so the event is the end of the last writer (`hold_recorder_lifeline`).

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libc::c_int;
use rtit_events::{flag, EventKind, MessageKind};
use rtit_unit::TraceUnit;

use crate::fatal_error::exit_with_error;
use crate::interface::guest_state::{CpuState, QemuCpuState};
use crate::interface::plugin_api::PluginApi;
use crate::interface::signals;
use crate::process::{exec, fault_causes};
use crate::shared::block_counters::BlockCounters;
use crate::shared::block_ring;
use crate::shared::config::RecordingConfig;
use crate::shared::recorder_link::{new_message, HiddenDescriptor, RecorderLink};
use crate::shared::shared_state::{
    current_thread, keep_only_thread, process_and_thread_id, set_thread, shared_state, SharedClock,
    SharedState, FIRST_THREAD,
};
use crate::shared::signal_frames::is_fault_signal;
use crate::thread::executed_path::ExecutedPath;
use crate::thread::thread_state::{
    RecordedThread, StateKeptOverExec, ThreadOptions, WindowPosition, ATTEND_CLOCK, ATTEND_EDGE,
    ATTEND_STOP, ATTEND_SWITCH, MODE_CLAIMED, MODE_ENDED, MODE_KERNEL, MODE_PARKED, MODE_USER,
    NEVER_TRACED,
};
use crate::thread::translation_block::{
    TranslationBlock, HANDLER_ENTRY, IN_VSYSCALL, ORDERS_THREADS, SINGLE_INSTRUCTION, WINDOW_START,
    WINDOW_STOP,
};
use crate::thread_events::{self, run_periodic_check, REFUSED_INSTRUCTION};

/// Connects to the recorder and reports the program.
pub(crate) fn start_process(
    api: PluginApi,
    mut config: RecordingConfig,
) -> Result<&'static SharedState, String> {
    let link = RecorderLink::connect_to_recorder(&config.folder)
        .map_err(|error| format!("no recorder answers: {error}"))?;
    hold_recorder_lifeline(&config.folder);
    let clock = SharedClock::open_shared_clock(&config.folder.join("clock"), config.tsc_tick())
        .map_err(|error| format!("clock: {error}"))?;
    let (pid, tid) = process_and_thread_id();
    if config.ring_blocks > 0
        && !block_ring::allocate_ring(config.ring_blocks, follow_thread_to_block)
    {
        config.ring_blocks = 0;
    }
    let shared = SharedState::initialize_shared_state(api, config, link, clock)?;
    if shared.config.counts_without_trace() {
        shared.with_locked(|locked| {
            locked.counters = Some(BlockCounters::create_counters_file(&shared.link, pid))
        });
        FIRST_THREAD.mark_outside_user_code();
    }
    let now = shared.clock.latest_clock() + shared.clock.tsc_tick;
    shared.clock.publish_clock(now);
    for (kind, blob) in [
        (EventKind::Exec, &shared.config.program),
        (EventKind::Comm, &shared.config.comm),
    ] {
        let mut message = new_message(kind, tid, now);
        message.ip = pid.into();
        message.flags = 1;
        shared.send_message(message, blob);
    }
    if let Some(warning) = exec::privilege_warning(&shared.config.program) {
        shared.send_warning(tid, now, &warning);
    }
    install_fork_handlers();
    Ok(shared)
}

/// Creates a thread at clock 0.
pub(super) fn new_thread(shared: &SharedState, cpu: CpuState, tid: u32) -> RecordedThread {
    let config = &shared.config;
    let unit = match TraceUnit::new(&config.settings) {
        Ok(unit) => unit,
        Err(error) => exit_with_error(&error.to_string()),
    };
    let wanted = ThreadOptions {
        truth: config.truth,
        min_run: config.min_run,
        snapshot: config.snapshot,
        periodic_check: run_periodic_check,
    };
    let phase = if config.counts_without_trace() {
        NEVER_TRACED
    } else {
        config.window.first_phase()
    };
    let mut thread = RecordedThread::new(wanted, WindowPosition::new(phase), unit, cpu, tid);
    thread.counters = thread_events::new_counters(shared, tid);
    thread.answered_requests = shared.clock.flush_requests();
    thread
}

/// Starts a thread at its first block. The thread is new, or continues from an exec.
#[cold]
#[inline(never)]
pub(crate) fn begin_thread(vcpu: u32, state: *const QemuCpuState) -> *mut RecordedThread {
    wait_if_process_ends();
    let shared = shared_state();
    let (pid, tid) = process_and_thread_id();
    let mut thread = new_thread(shared, CpuState::new(state), tid);
    thread.raise_clock(shared.clock.latest_clock() + shared.clock.tsc_tick);
    shared.clock.publish_clock(thread.clock_in_instructions());
    let parent = shared.with_locked(|locked| locked.parent_of_next);
    if parent == 0 {
        signals::catch_terminating_signals();
        fault_causes::wrap_fault_handlers();
        signals::wrap_all_handlers();
        thread.restore_state_after_exec(shared.config.inherited);
    }
    let thread = if parent == 0 {
        FIRST_THREAD.store_first_thread(thread)
    } else {
        Box::into_raw(Box::new(thread))
    };
    set_thread(vcpu, thread);
    let is_ending = shared.with_locked(|locked| {
        if ENDING.load(Ordering::SeqCst) {
            return true;
        }
        locked.live_threads.push(thread);
        // SAFETY: our own thread. Ranges that come later come with a switch.
        unsafe { (*thread).set_address_ranges(&locked.ranges) };
        false
    });
    if is_ending {
        // No thread would wait for this one: the recorder must not see it.
        wait_for_process_end();
    }
    // SAFETY: as above.
    let thread_ref = unsafe { &mut *thread };
    announce_thread(shared, thread_ref, parent, pid);
    thread_ref.write_initial_tracing();
    thread
}

pub(super) fn announce_thread(
    shared: &SharedState,
    thread: &RecordedThread,
    parent: u32,
    parent_pid: u32,
) {
    let mut message = thread.new_message(EventKind::Thread);
    message.target = parent.into();
    message.extra = parent_pid.into();
    shared.send_message(message, &[]);
    if thread.truth.is_truth_written() {
        let record = ExecutedPath::thread_record(thread.tid, shared.pid());
        shared.send_message(thread.new_message(MessageKind::Truth), &record);
    }
}

/// Notes the parent of the next new thread.
pub(crate) fn expect_new_thread_of(creator: u32) {
    shared_state().with_locked(|locked| locked.parent_of_next = creator);
}

/// Removes the thread of a vCPU, which has ended its trace.
pub(crate) fn forget_thread(vcpu: u32, thread: *mut RecordedThread) {
    // A thread that is ending the process may wait for this one.
    // SAFETY: threads are never freed; the field is atomic.
    unsafe { (*thread).mode.store(MODE_ENDED, Ordering::Release) };
    shared_state().with_locked(|locked| locked.live_threads.retain(|&live| live != thread));
    set_thread(vcpu, std::ptr::null_mut());
    // The memory of the thread stays: another thread may read its clock.
}

/// Registers the handlers that every fork of the process calls.
pub(super) fn install_fork_handlers() {
    // SAFETY: the handlers are functions without arguments.
    unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
        )
    };
}

extern "C" fn before_fork() {
    shared_state().lock.lock_mutex();
}

extern "C" fn after_fork_in_parent() {
    shared_state().lock.unlock_mutex();
}

/// Starts the recording of the child: only the calling thread is left, with a new number.
extern "C" fn after_fork_in_child() {
    let shared = shared_state();
    let parent_pid = shared.pid();
    let (pid, tid) = process_and_thread_id();
    shared.set_pid(pid);
    hold_recorder_lifeline(&shared.config.folder);
    let me = current_thread();
    // SAFETY: the lock is held since before the fork.
    let locked = unsafe { shared.locked_by_caller() };
    // A parent that is ending, or running another program, has already removed this thread.
    locked.live_threads.clear();
    locked.live_threads.extend((!me.is_null()).then_some(me));
    if let Some(counters) = &mut locked.counters {
        counters.recreate_after_fork(&shared.link, pid);
    }
    shared.lock.unlock_mutex();
    keep_only_thread(me);
    block_ring::reset_in_child();
    reset_lifecycle_in_child();
    signals::reset_signals_in_child();
    // The thread that held this lock is not in this process.
    signals::unlock_signal_actions();
    if me.is_null() {
        return;
    }
    // SAFETY: our own thread, which is in the fork system call.
    let thread = unsafe { &mut *me };
    let (parent, was) = (thread.tid, thread.clock_in_instructions());
    *thread = new_thread(shared, thread.cpu, tid);
    thread.mode.store(MODE_KERNEL, Ordering::Relaxed);
    thread.raise_clock(shared.clock.latest_clock().max(was) + shared.clock.tsc_tick);
    shared.clock.publish_clock(thread.clock_in_instructions());
    announce_thread(shared, thread, parent, parent_pid);
    shared.with_locked(|locked| thread.set_address_ranges(&locked.ranges));
    thread.write_initial_tracing();
}

/// Follows the thread to `block`. The functions in `callbacks::blocks` are shortcuts for common cases.
#[inline(always)]
pub(crate) fn follow_thread_to_block(
    thread: &mut RecordedThread,
    block: &'static TranslationBlock,
) {
    let marks = block.marks.load(Ordering::Relaxed) & !SINGLE_INSTRUCTION;
    if marks == 0 && thread.follow_transition(block) {
        thread.block = block;
        // Checked after the transition: what was due at the end of the last block is due here.
        if thread.attention.load(Ordering::Relaxed) != 0 {
            handle_attention(thread, block, false);
        }
    } else {
        follow_thread_to_unusual_block(thread, block);
    }
    thread.update_quiet_limit();
}

#[cold]
#[inline(never)]
fn follow_thread_to_unusual_block(thread: &mut RecordedThread, block: &'static TranslationBlock) {
    let start = block.start;
    let entered = || {
        let registers = thread.cpu.handler_registers();
        shared_state().with_locked(|locked| {
            let handlers = &locked.handlers;
            registers.and_then(|registers| {
                handlers.interruption_by_handler_at(
                    start,
                    registers,
                    fault_causes::was_signal_sent_by_process,
                )
            })
        })
    };
    let signal = if block.has_mark(HANDLER_ENTRY) {
        entered()
    } else {
        None
    };
    if let Some(what) = signal {
        fault_causes::clear_signal_notes();
        signals::clear_undelivered_signal();
        thread.leave_user_code_by_signal(what);
    }
    let begins = thread.is_outside_user_code();
    if !thread.follow_transition(block) && !thread.enter_user_code_or_restart_block_at(start) {
        if thread.block.first_refused < thread.block.instructions {
            thread.leave_user_code_with_overflow(REFUSED_INSTRUCTION);
        } else {
            thread.leave_user_code_with_overflow(&format!(
                "control went to {start:#x}, where the last instruction cannot lead"
            ));
        }
        thread.enter_user_code_or_restart_block_at(start);
    }
    thread.block = block;
    if block.has_mark(IN_VSYSCALL) {
        thread.enter_vsyscall(start);
    }
    handle_attention(thread, block, begins);
}

/// Handles the requests of other threads and the edges of the recording window. `begins`: the thread has just entered
/// user code.
#[cold]
#[inline(never)]
fn handle_attention(thread: &mut RecordedThread, block: &'static TranslationBlock, begins: bool) {
    let start = block.start;
    let attention = thread.attention.load(Ordering::Relaxed);
    if attention & ATTEND_STOP != 0 {
        park_thread(thread, start);
    }
    if attention & ATTEND_CLOCK != 0 {
        thread.attention.fetch_and(!ATTEND_CLOCK, Ordering::AcqRel);
        thread.raise_clock(shared_state().clock.latest_clock());
    }
    if block.has_mark(ORDERS_THREADS) {
        let clock = thread.clock_in_instructions();
        shared_state().clock.publish_clock(clock);
        thread.attention.fetch_or(ATTEND_CLOCK, Ordering::AcqRel);
    }
    if attention & ATTEND_SWITCH != 0 && !begins {
        thread.attention.fetch_and(!ATTEND_SWITCH, Ordering::AcqRel);
        if !thread.is_outside_user_code() {
            thread.switch_context(start);
        }
    }
    if (attention & ATTEND_EDGE != 0 || block.has_mark(WINDOW_START | WINDOW_STOP))
        && !thread.is_outside_user_code()
    {
        thread.check_window_edges_at(block);
    }
}

/// Set when no thread may start any more.
static ENDING: AtomicBool = AtomicBool::new(false);

/// How long the end of the process waits for its other threads.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// A thread that QEMU has stopped does not enter or leave a system call after this time.
const QEMU_STOP_TIME: Duration = Duration::from_millis(50);

/// Returns only if the process is not ending.
pub(super) fn wait_if_process_ends() {
    if ENDING.load(Ordering::SeqCst) {
        wait_for_process_end();
    }
}

/// Resets the state in a forked child, which lives on even if its parent is ending.
pub(super) fn reset_lifecycle_in_child() {
    ENDING.store(false, Ordering::SeqCst);
}

/// Ends the recording of all threads but the calling one.
pub(crate) fn stop_other_recordings(status: u32) {
    stop_other_threads(false, |thread| {
        thread.end_trace(status, flag::EXIT_WHOLE_PROCESS)
    });
}

/// Ends the recording of all threads before an exec, and returns the state for the new program, which runs in the first
/// thread.
pub(crate) fn stop_recording_for_exec(thread: &mut RecordedThread) -> StateKeptOverExec {
    let pid = shared_state().pid();
    let mut inherited = shared_state().with_locked(|locked| locked.first_thread_state);
    stop_other_threads(false, |other| {
        if other.tid == pid {
            inherited = other.end_trace_for_exec();
        } else {
            other.end_trace(0, 0);
        }
    });
    if thread.tid == pid {
        return thread.end_trace_for_exec();
    }
    thread.end_trace(0, 0);
    inherited
}

/// Ends the recording of a process that dies of a signal in this thread.
///
/// # Safety
/// `thread` is the calling thread.
pub(crate) unsafe fn end_by_signal(thread: *mut RecordedThread, signal: i32) {
    let report = fault_causes::kernel_siginfo_of_signal(thread, signal);
    block_ring::close_ring(thread);
    let thread = &mut *thread;
    if let (false, Some(ip)) = (thread.is_outside_user_code(), thread.cpu.read_rip()) {
        if let Some(cause) = fault_causes::fault_cause(thread, signal, ip, report) {
            let mut message =
                new_message(EventKind::Fault, thread.tid, thread.clock_in_instructions());
            message.ip = ip;
            message.target = cause.address;
            message.extra = u64::from(signal as u32) | u64::from(cause.code as u32) << 32;
            shared_state().send_message(message, &[]);
        }
    }
    thread.leave_user_code_at_current_ip(is_fault_signal(signal));
    stop_other_threads(signal_dumps_core(signal), |other| {
        other.end_trace(signal as u32, flag::EXIT_WHOLE_PROCESS);
    });
    thread.end_trace(
        signal as u32,
        flag::EXIT_WHOLE_PROCESS | flag::EXIT_TOOK_SIGNAL,
    );
}

/// Stops every other thread and calls `work` for each. `excluded`: QEMU has stopped them already, between two blocks,
/// unless they are in a system call.
fn stop_other_threads(excluded: bool, mut work: impl FnMut(&mut RecordedThread)) {
    let shared = shared_state();
    let me = current_thread();
    ENDING.store(true, Ordering::SeqCst);
    let others: Vec<*mut RecordedThread> = shared.with_locked(|locked| {
        let others = locked
            .live_threads
            .iter()
            .copied()
            .filter(|&thread| thread != me)
            .collect();
        locked.live_threads.retain(|&thread| thread == me);
        others
    });
    for &thread in &others {
        // SAFETY: threads are never freed; the field is atomic.
        unsafe { (*thread).attention.fetch_or(ATTEND_STOP, Ordering::AcqRel) };
    }
    let begun = Instant::now();
    for &thread in &others {
        // SAFETY: as above.
        let mode = unsafe { &(*thread).mode };
        loop {
            let claimed = mode.compare_exchange(
                MODE_KERNEL,
                MODE_CLAIMED,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if claimed.is_ok() || mode.load(Ordering::Acquire) == MODE_PARKED {
                // SAFETY: it has stopped and does not touch its state any more.
                work(unsafe { &mut *thread });
                break;
            }
            if mode.load(Ordering::Acquire) == MODE_ENDED {
                break;
            }
            if excluded && begun.elapsed() > QEMU_STOP_TIME {
                // SAFETY: QEMU keeps it from running until the process is gone.
                let thread = unsafe { &mut *thread };
                thread.leave_user_code_at_current_ip(false);
                work(thread);
                break;
            }
            if begun.elapsed() > STOP_TIMEOUT {
                // SAFETY: the tid never changes.
                let tid = unsafe { (*thread).tid };
                let text = "a thread ran on while its process ended: its end is missing";
                shared.send_warning(tid, shared.clock.latest_clock(), text);
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Stops the calling thread before the instruction at `ip`, until the process ends.
pub(crate) fn park_thread(thread: &mut RecordedThread, ip: u64) -> ! {
    thread.stop_thread_before_instruction(ip);
    thread.mode.store(MODE_PARKED, Ordering::Release);
    wait_for_process_end()
}

/// Returns to user mode after a system call; waits for the end if another thread is ending the process.
pub(crate) fn leave_kernel(thread: *mut RecordedThread) {
    // SAFETY: the field is atomic.
    let mode = unsafe { &(*thread).mode };
    if mode
        .compare_exchange(MODE_KERNEL, MODE_USER, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        wait_for_process_end();
    }
}

/// Returns whether QEMU stops all threads before it ends the process by this signal.
fn signal_dumps_core(signal: i32) -> bool {
    use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGTRAP};
    [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGTRAP].contains(&signal)
}

fn wait_for_process_end() -> ! {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

const NAME: &str = "alive";
const F_SETSIG: c_int = 10;

pub(crate) static LIFELINE: HiddenDescriptor = HiddenDescriptor::no_descriptor();
/// Identifies the pipe: the program may have closed it and reused its number.
static INODE: AtomicU64 = AtomicU64::new(0);

/// Ties the process to the recorder of `folder`. A failure is ignored: the recording works without it.
pub(crate) fn hold_recorder_lifeline(folder: &Path) {
    let Ok(path) = CString::new(folder.join(NAME).as_os_str().as_bytes()) else {
        return;
    };
    // SAFETY: calls on a path that ends with NUL and on files of our own.
    unsafe {
        let inherited = LIFELINE.release_file();
        if inherited >= 0 && inode_of_file(inherited) == Some(INODE.load(Ordering::Relaxed)) {
            libc::close(inherited);
        }
        let file = libc::open(
            path.as_ptr(),
            libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC,
        );
        if file < 0 {
            return;
        }
        LIFELINE.take_over_file(file);
        let file = LIFELINE.descriptor_number();
        INODE.store(inode_of_file(file).unwrap_or(0), Ordering::Relaxed);
        libc::fcntl(file, libc::F_SETOWN, libc::getpid());
        libc::fcntl(file, F_SETSIG, libc::SIGKILL);
        libc::fcntl(file, libc::F_SETFL, libc::O_NONBLOCK | libc::O_ASYNC);
    }
}

fn inode_of_file(file: c_int) -> Option<u64> {
    // SAFETY: fills in a value of our own.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        (libc::fstat(file, &mut found) == 0).then_some(found.st_ino)
    }
}
