//! Sends packets, executed path and counts of a thread to the recorder: when much has gathered, at some system calls,
//! and at the thread's end.

use rtit_events::{EventKind, MessageKind};
use std::sync::atomic::Ordering;

use crate::shared::block_counters::BlockCounters;
use crate::shared::recorder_link::{new_message, Message};
use crate::shared::shared_state::{shared, SharedState};
use crate::thread::thread_counters::ThreadCounters;
use crate::thread::thread_state::{InheritedState, Thread, CHECK_INTERVAL};
use crate::thread::translation_block::TranslationBlock;

/// Bytes of packets that a system call sends.
const FLUSH_SIZE_IN_KERNEL: usize = 4096;

impl Thread {
    /// Ends the trace of a thread that is not in user code. `flags` are those of an exit message.
    pub(crate) fn end_trace(&mut self, status: u32, flags: u8) {
        let shared = shared();
        self.unit.disable();
        self.flush(shared);
        if self.truth.is_written() {
            let records = self.path.end_records(self.tid, status);
            shared.send(self.new_message(MessageKind::Truth), &records);
        }
        let mut message = self.new_message(EventKind::Exit);
        message.ip = status.into();
        message.target = self.end_counting(shared).unwrap_or(message.target);
        message.flags = flags;
        shared.send(message, &[]);
        shared.clock.publish(self.now());
        if self.tid == shared.pid() {
            let inherited = self.inherited_state();
            shared.with_locked(|locked| locked.first_thread_state = inherited);
        }
    }

    /// Ends the trace of a thread that continues in another program, and returns what that program needs.
    pub(crate) fn end_trace_for_exec(&mut self) -> InheritedState {
        let shared = shared();
        self.unit.disable();
        self.flush(shared);
        shared.clock.publish(self.now());
        // Packets carry the counts too, but there may be none: the last instructions may be outside of the filters.
        let mut message = self.new_message(MessageKind::Counts);
        message.target = self.end_counting(shared).unwrap_or(message.target);
        shared.send(message, &[]);
        self.inherited_state()
    }

    /// Sends all that is held back.
    pub(crate) fn flush(&mut self, shared: &SharedState) {
        if self.truth.is_written() {
            let records = self.path.take_records(self.tid);
            if !records.is_empty() {
                shared.send(self.new_message(MessageKind::Truth), &records);
            }
        }
        if shared.config.is_partial() {
            let mut message = self.new_message(MessageKind::Traced);
            [message.target, message.extra] = self.traced_totals();
            shared.send(message, &[]);
        }
        if !self.unit.output().is_empty() {
            if !shared.clock.is_full() {
                shared.send(self.new_message(MessageKind::Packets), self.unit.output());
            }
            self.unit.discard_output();
        }
    }

    pub(crate) fn flush_in_kernel(&mut self, shared: &SharedState) {
        // The snapshot of a thread that waits in the kernel shows what it waits for.
        if self.snapshot || self.unit.output().len() >= FLUSH_SIZE_IN_KERNEL {
            self.flush(shared);
        }
    }

    /// Creates a message with the pid in `ip`, retired instructions in `target` and branches in `extra`.
    pub(crate) fn new_message(&self, kind: impl Into<u8>) -> Message {
        let mut message = new_message(kind, self.tid, self.now());
        message.ip = u64::from(shared().pid());
        message.target = self.retired();
        message.extra = self.branches;
        message
    }
}

/// Bytes of packets that a thread holds back, apart from those of the next `CHECK_INTERVAL` instructions.
const FLUSH_SIZE: usize = 32 * 1024;

/// See `thread::thread_state::PeriodicCheck`.
#[cold]
#[inline(never)]
pub(crate) fn run_periodic_check(thread: &mut Thread, count: u32) -> u32 {
    let shared = shared();
    let clock = thread.now() + u64::from(count);
    thread.next_check = clock + CHECK_INTERVAL;
    let done = thread.pass_edges_in_block(count);
    thread.clock.store(clock, Ordering::Relaxed);
    thread.sync_unit_clock();
    let requests = shared.clock.flush_requests();
    if thread.unit.output().len() >= FLUSH_SIZE
        || thread.path.is_long()
        || requests != thread.answered_requests
    {
        if thread.path.is_at_boundary() {
            thread.answered_requests = requests;
            thread.flush(shared);
        } else {
            thread.next_check = clock;
        }
    }
    done
}

/// Returns the counters of a thread that starts.
pub(crate) fn new_counters(shared: &SharedState, tid: u32) -> ThreadCounters {
    let cells = shared.with_locked(|locked| Some(locked.counters.as_mut()?.new_table(tid)));
    // SAFETY: tables have a cell for each number; where nothing is counted no counter is used.
    cells.map_or_else(ThreadCounters::default, |cells| unsafe {
        ThreadCounters::new(cells, partial_block_id)
    })
}

fn partial_block_id(block: &TranslationBlock, count: u32) -> u32 {
    let number = |counters: &mut BlockCounters| counters.partial_block_id(block, count);
    shared().with_locked(|locked| locked.counters.as_mut().map_or(0, number))
}

impl Thread {
    /// Adds up the counts of a thread that ends or continues in another program. Returns the number of its
    /// instructions; None if nothing is counted.
    pub(super) fn end_counting(&self, shared: &SharedState) -> Option<u64> {
        let cells = self.counters.cells();
        shared
            .with_locked(|locked| Some(locked.counters.as_mut()?.add_ended_thread(self.tid, cells)))
    }
}
