//! The start of the process, the start and end of its threads, and fork. The lock stays held over a fork, and the child
//! starts its recording anew.

use rtit_events::{EventKind, MessageKind};
use std::sync::atomic::Ordering;

use rtit_unit::Unit;

use crate::fatal_error::exit_with_error;
use crate::interface::cpu_state::{CpuState, QemuCpuState};
use crate::interface::plugin_api::PluginApi;
use crate::interface::signals;
use crate::process::exec::kernel_limits;
use crate::process::follow_block::follow_block;
use crate::process::process_end::wait_if_ending;
use crate::process::{fault_causes, lifeline, process_end};
use crate::shared::block_counters::BlockCounters;
use crate::shared::block_ring;
use crate::shared::config::RecordingConfig;
use crate::shared::recorder_link::{new_message, RecorderLink};
use crate::shared::shared_clock::SharedClock;
use crate::shared::shared_state::{process_and_thread_id, shared, SharedState};
use crate::shared::thread_table::{current_thread, keep_only_thread, set_thread, FIRST_THREAD};
use crate::thread::executed_path::ExecutedPath;
use crate::thread::thread_state::{Thread, ThreadOptions, MODE_KERNEL};
use crate::thread::thread_state::{WindowPosition, NEVER_TRACED};
use crate::thread_events::output;
use crate::thread_events::output::run_periodic_check;

/// Connects to the recorder and reports the program.
pub(crate) fn start_process(
    api: PluginApi,
    mut config: RecordingConfig,
) -> Result<&'static SharedState, String> {
    let link = RecorderLink::connect(&config.folder)
        .map_err(|error| format!("no recorder answers: {error}"))?;
    lifeline::hold_lifeline(&config.folder);
    let clock = SharedClock::open(&config.folder.join("clock"), config.tsc_tick())
        .map_err(|error| format!("clock: {error}"))?;
    let (pid, tid) = process_and_thread_id();
    if config.ring_blocks > 0 && !block_ring::prepare(config.ring_blocks, follow_block) {
        config.ring_blocks = 0;
    }
    let shared = SharedState::initialize(api, config, link, clock)?;
    if shared.config.only_counts() {
        shared
            .with_locked(|locked| locked.counters = Some(BlockCounters::create(&shared.link, pid)));
        FIRST_THREAD.prepare();
    }
    let now = shared.clock.latest() + shared.clock.tsc_tick;
    shared.clock.publish(now);
    for (kind, blob) in [
        (EventKind::Exec, &shared.config.program),
        (EventKind::Comm, &shared.config.comm),
    ] {
        let mut message = new_message(kind, tid, now);
        message.ip = pid.into();
        message.flags = 1;
        shared.send(message, blob);
    }
    if let Some(warning) = kernel_limits::privilege_warning(&shared.config.program) {
        shared.send(
            new_message(EventKind::Warning, tid, now),
            warning.as_bytes(),
        );
    }
    install_fork_handlers();
    Ok(shared)
}

/// Creates a thread at clock 0.
pub(super) fn new_thread(shared: &SharedState, cpu: CpuState, tid: u32) -> Thread {
    let config = &shared.config;
    let unit = match Unit::new(&config.settings) {
        Ok(unit) => unit,
        Err(error) => exit_with_error(&error.to_string()),
    };
    let wanted = ThreadOptions {
        truth: config.truth,
        min_run: config.min_run,
        snapshot: config.snapshot,
        periodic_check: run_periodic_check,
    };
    let phase = if config.only_counts() {
        NEVER_TRACED
    } else {
        config.window.first_phase()
    };
    let mut thread = Thread::new(wanted, WindowPosition::new(phase), unit, cpu, tid);
    thread.counters = output::new_counters(shared, tid);
    thread.answered_requests = shared.clock.flush_requests();
    thread
}

/// Starts a thread at its first block. The thread is new, or continues from an exec.
#[cold]
#[inline(never)]
pub(crate) fn begin_thread(vcpu: u32, state: *const QemuCpuState) -> *mut Thread {
    wait_if_ending();
    let shared = shared();
    let (pid, tid) = process_and_thread_id();
    let mut thread = new_thread(shared, CpuState::new(state), tid);
    thread.raise_clock(shared.clock.latest() + shared.clock.tsc_tick);
    shared.clock.publish(thread.now());
    let parent = shared.with_locked(|locked| locked.parent_of_next);
    if parent == 0 {
        signals::catch_terminating_signals();
        fault_causes::wrap_fault_handlers();
        signals::wrap_all_handlers();
        thread.continue_from(shared.config.inherited);
    }
    announce_thread(shared, &thread, parent, pid);
    let thread = if parent == 0 {
        FIRST_THREAD.initialize(thread)
    } else {
        Box::into_raw(Box::new(thread))
    };
    set_thread(vcpu, thread);
    shared.with_locked(|locked| {
        locked.live_threads.push(thread);
        // SAFETY: our own thread. Ranges that come later come with a switch.
        unsafe { (*thread).set_address_ranges(&locked.ranges) };
    });
    // SAFETY: as above.
    unsafe { (*thread).write_initial_tracing() };
    thread
}

pub(super) fn announce_thread(shared: &SharedState, thread: &Thread, parent: u32, parent_pid: u32) {
    let mut message = thread.new_message(EventKind::Thread);
    message.target = parent.into();
    message.extra = parent_pid.into();
    shared.send(message, &[]);
    if thread.truth.is_written() {
        let record = ExecutedPath::thread_record(thread.tid, shared.pid());
        shared.send(thread.new_message(MessageKind::Truth), &record);
    }
}

/// Notes the parent of the next new thread.
pub(crate) fn expect_child_of(creator: u32) {
    shared().with_locked(|locked| locked.parent_of_next = creator);
}

/// Removes the thread of a vCPU, which has ended.
pub(crate) fn forget_thread(vcpu: u32, thread: *mut Thread) {
    shared().with_locked(|locked| locked.live_threads.retain(|&live| live != thread));
    set_thread(vcpu, std::ptr::null_mut());
    // The memory of the thread stays: another thread may read its clock.
}

/// Registers the handlers that every fork of the process calls.
pub(super) fn install_fork_handlers() {
    // SAFETY: the handlers are functions without arguments.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

extern "C" fn before_fork() {
    shared().lock.acquire();
}

extern "C" fn in_parent() {
    shared().lock.release();
}

/// Starts the recording of the child: only the calling thread is left, with a new number.
extern "C" fn in_child() {
    let shared = shared();
    let parent_pid = shared.pid();
    let (pid, tid) = process_and_thread_id();
    shared.set_pid(pid);
    lifeline::hold_lifeline(&shared.config.folder);
    let me = current_thread();
    // SAFETY: the lock is held since before the fork.
    let locked = unsafe { shared.locked_by_caller() };
    // A parent that is ending, or running another program, has already removed this thread.
    locked.live_threads.clear();
    locked.live_threads.extend((!me.is_null()).then_some(me));
    if let Some(counters) = &mut locked.counters {
        counters.recreate_after_fork(&shared.link, pid);
    }
    shared.lock.release();
    keep_only_thread(me);
    block_ring::reset_in_child();
    process_end::reset_in_child();
    signals::reset_signals_in_child();
    // The thread that held this lock is not in this process.
    signals::unlock_signal_actions();
    if me.is_null() {
        return;
    }
    // SAFETY: our own thread, which is in the fork system call.
    let thread = unsafe { &mut *me };
    let (parent, was) = (thread.tid, thread.now());
    *thread = new_thread(shared, thread.cpu, tid);
    thread.mode.store(MODE_KERNEL, Ordering::Relaxed);
    thread.raise_clock(shared.clock.latest().max(was) + shared.clock.tsc_tick);
    shared.clock.publish(thread.now());
    announce_thread(shared, thread, parent, parent_pid);
    shared.with_locked(|locked| thread.set_address_ranges(&locked.ranges));
    thread.write_initial_tracing();
}
