//! The state that the tracing thread and the [`crate::Tracer`] share; above all the queue of event batches between
//! them.
//!
//! The tracing thread appends to the open batch. A full batch moves to the queue; while the queue is full, the thread
//! waits. A reader that has waited for `MAX_OPEN_TIME` takes the open batch as it is, so that the events before a sleep
//! arrive.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use libc::pid_t;
use rtit_events::{Record, RECORD_SIZE};

use crate::ptrace;

/// A batch is full when its records and blobs have this many bytes.
const BATCH_SIZE: usize = 64 * 1024;
/// Full batches in the queue.
const MAX_QUEUED: usize = 16;
/// A reader takes the open batch after this time.
const MAX_OPEN_TIME: Duration = Duration::from_millis(50);

/// Records, and the blobs that they refer to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordBatch {
    /// A multiple of [`RECORD_SIZE`] bytes.
    pub records: Vec<u8>,
    pub blobs: Vec<Vec<u8>>,
}

impl RecordBatch {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the records in order.
    pub fn iter(&self) -> impl Iterator<Item = Record> + '_ {
        self.records
            .chunks(RECORD_SIZE)
            .filter_map(Record::from_bytes)
    }
}

/// Locks a mutex, also after a panic in another thread.
pub(crate) fn lock_despite_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[derive(Default)]
struct QueueState {
    open: RecordBatch,
    size: usize,
    ready: VecDeque<RecordBatch>,
    ended: bool,
    abandoned: bool,
}

#[derive(Default)]
pub(crate) struct EventStream {
    state: Mutex<QueueState>,
    written: Condvar,
    taken: Condvar,
}

impl EventStream {
    fn lock_queue(&self) -> MutexGuard<'_, QueueState> {
        lock_despite_poison(&self.state)
    }

    /// Waits while the queue is full.
    fn wait_for_room<'a>(&self, state: MutexGuard<'a, QueueState>) -> MutexGuard<'a, QueueState> {
        let full = |state: &mut QueueState| state.ready.len() >= MAX_QUEUED && !state.abandoned;
        self.taken
            .wait_while(state, full)
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Appends a record with an optional blob, the index of which becomes `extra`. False if the reader is gone.
    pub(crate) fn push_record(&self, mut record: Record, blob: Option<Vec<u8>>) -> bool {
        let mut state = self.lock_queue();
        if state.abandoned {
            return false;
        }
        if let Some(blob) = blob {
            record.extra = state.open.blobs.len() as u64;
            state.size += blob.len();
            state.open.blobs.push(blob);
        }
        state.open.records.extend_from_slice(&record.to_bytes());
        state.size += RECORD_SIZE;
        if state.size >= BATCH_SIZE {
            state = self.wait_for_room(state);
            state.queue_open_batch();
            self.written.notify_one();
        }
        !state.abandoned
    }

    /// Appends a complete batch. False if the reader is gone.
    pub(crate) fn push_batch(&self, batch: RecordBatch) -> bool {
        let mut state = self.lock_queue();
        state.queue_open_batch();
        state = self.wait_for_room(state);
        state.ready.push_back(batch);
        self.written.notify_one();
        !state.abandoned
    }

    /// Ends the stream.
    pub(crate) fn end_stream(&self) {
        let mut state = self.lock_queue();
        state.queue_open_batch();
        state.ended = true;
        self.written.notify_all();
    }

    /// Lets the writer continue without a reader.
    pub(crate) fn continue_without_reader(&self) {
        self.lock_queue().abandoned = true;
        self.taken.notify_all();
    }

    /// Returns the next batch; an empty one if there is none within `timeout`; None at the end.
    pub(crate) fn next_batch(&self, timeout: Duration) -> Option<RecordBatch> {
        let start = Instant::now();
        let mut state = self.lock_queue();
        loop {
            if let Some(batch) = state.ready.pop_front() {
                self.taken.notify_one();
                return Some(batch);
            }
            if state.ended {
                return None;
            }
            let waited = start.elapsed();
            let limit = timeout.min(MAX_OPEN_TIME);
            if waited >= limit && (waited >= timeout || !state.open.is_empty()) {
                return Some(state.take_open_batch());
            }
            let rest = if waited < limit {
                limit - waited
            } else {
                MAX_OPEN_TIME.min(timeout - waited)
            };
            state = self
                .written
                .wait_timeout(state, rest)
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .0;
        }
    }
}

impl QueueState {
    fn take_open_batch(&mut self) -> RecordBatch {
        self.size = 0;
        std::mem::take(&mut self.open)
    }

    fn queue_open_batch(&mut self) {
        if !self.open.is_empty() {
            let batch = self.take_open_batch();
            self.ready.push_back(batch);
        }
    }
}

pub(crate) struct TracerState {
    pub(crate) stream: EventStream,
    pub(crate) retired: AtomicU64,
    pub(crate) stops: AtomicU64,
    /// Processes of the separate tracing process.
    pub(crate) processes_elsewhere: AtomicUsize,
    killed: AtomicBool,
    /// The programs were attached to: the tracer detaches instead of killing.
    attached: bool,
    pub(crate) released: AtomicBool,
    processes: Mutex<HashMap<pid_t, Option<OwnedFd>>>,
    pub(crate) started: Instant,
    ended: Mutex<Option<Instant>>,
}

impl TracerState {
    pub(crate) fn new(attached: bool) -> TracerState {
        TracerState {
            stream: EventStream::default(),
            retired: AtomicU64::new(0),
            stops: AtomicU64::new(0),
            processes_elsewhere: AtomicUsize::new(0),
            killed: AtomicBool::new(false),
            attached,
            released: AtomicBool::new(false),
            processes: Mutex::default(),
            started: Instant::now(),
            ended: Mutex::new(None),
        }
    }

    fn lock_processes(&self) -> MutexGuard<'_, HashMap<pid_t, Option<OwnedFd>>> {
        lock_despite_poison(&self.processes)
    }

    /// Adds a process that has not been waited for, so that its number cannot be reused.
    pub(crate) fn add_process(&self, pid: pid_t) {
        let fd = ptrace::pidfd_open(pid).ok();
        self.lock_processes().entry(pid).or_insert(fd);
    }

    /// Removes a process that has ended.
    pub(crate) fn remove_process(&self, pid: pid_t) {
        self.lock_processes().remove(&pid);
    }

    /// Sends a signal to a process; fails with ESRCH if it has ended.
    pub(crate) fn signal_process(&self, pid: pid_t, signal: i32) -> io::Result<()> {
        match self.lock_processes().get(&pid) {
            Some(Some(fd)) => ptrace::pidfd_signal(fd, signal),
            // SAFETY: no pointers.
            Some(None) => match unsafe { libc::kill(pid, signal) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            },
            None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// How many processes exist.
    pub(crate) fn process_count(&self) -> usize {
        self.lock_processes().len() + self.processes_elsewhere.load(Ordering::Relaxed)
    }

    /// Kills every process; the tracing thread kills those that appear later. Attached programs are detached by the
    /// tracing thread instead.
    pub(crate) fn kill_all_processes(&self) {
        self.killed.store(true, Ordering::SeqCst);
        if self.attached {
            return;
        }
        let pids: Vec<pid_t> = self.lock_processes().keys().copied().collect();
        for pid in pids {
            // It may have ended.
            let _ = self.signal_process(pid, libc::SIGKILL);
        }
    }

    /// Returns whether every thread runs untraced from its next stop on.
    pub(crate) fn are_threads_released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    pub(crate) fn are_processes_killed(&self) -> bool {
        self.killed.load(Ordering::SeqCst)
    }

    /// Returns when the tracing thread ended.
    pub(crate) fn tracing_end_time(&self) -> MutexGuard<'_, Option<Instant>> {
        lock_despite_poison(&self.ended)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rtit_events::EventKind;

    use super::*;

    fn record(clock: u64) -> Record {
        Record {
            clock,
            ..Record::new(EventKind::Code, 1)
        }
    }

    #[test]
    fn reader_gets_an_open_batch_and_then_the_end() {
        let stream = EventStream::default();
        assert!(stream.push_record(record(1), Some(vec![7])));
        assert!(stream.push_record(record(2), Some(vec![8, 9])));
        let batch = stream.next_batch(Duration::ZERO).unwrap();
        assert_eq!(
            batch.iter().map(|r| (r.clock, r.extra)).collect::<Vec<_>>(),
            [(1, 0), (2, 1)]
        );
        assert_eq!(batch.blobs, [vec![7], vec![8, 9]]);
        assert_eq!(
            stream.next_batch(Duration::ZERO),
            Some(RecordBatch::default())
        );
        assert!(stream.push_record(record(3), Some(vec![])));
        stream.end_stream();
        assert_eq!(
            stream
                .next_batch(Duration::ZERO)
                .unwrap()
                .iter()
                .next()
                .unwrap()
                .extra,
            0
        );
        assert_eq!(stream.next_batch(Duration::from_secs(9)), None);
    }

    #[test]
    fn writer_waits_for_the_reader_and_loses_nothing() {
        let stream = Arc::new(EventStream::default());
        let writer = stream.clone();
        let total = (MAX_QUEUED + 8) * BATCH_SIZE / RECORD_SIZE;
        let thread = std::thread::spawn(move || {
            for clock in 0..total as u64 {
                writer.push_record(record(clock), None);
            }
            writer.end_stream();
        });
        let mut expected = 0;
        while let Some(batch) = stream.next_batch(Duration::from_secs(60)) {
            assert!(batch.records.len() < BATCH_SIZE + RECORD_SIZE);
            for record in batch.iter() {
                assert_eq!(record.clock, expected);
                expected += 1;
            }
        }
        thread.join().unwrap();
        assert_eq!(expected, total as u64);
    }

    #[test]
    fn abandoned_writer_does_not_block() {
        let stream = EventStream::default();
        stream.continue_without_reader();
        for clock in 0..(MAX_QUEUED as u64 + 2) * BATCH_SIZE as u64 / 40 {
            assert!(!stream.push_record(record(clock), None));
        }
    }
}
