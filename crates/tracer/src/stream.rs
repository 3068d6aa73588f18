//! The queue of batches between the tracing thread and who reads them.
//!
//! The tracing thread appends to the open batch; a full one moves to the queue, and the thread waits while the queue is
//! full. A reader that has waited for a while takes the open batch as it is, so that a program that sleeps hides
//! nothing.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::event::Record;

/// A batch is full when records and blobs have this many bytes.
const FULL: usize = 64 * 1024;
/// Full batches that may wait for the reader.
const QUEUE: usize = 16;
/// A reader takes the open batch after this time.
const PATIENCE: Duration = Duration::from_millis(50);

/// Records one after the other, and the blobs that they point to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// A multiple of [`Record::SIZE`] bytes.
    pub records: Vec<u8>,
    pub blobs: Vec<Vec<u8>>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The records in order.
    pub fn iter(&self) -> impl Iterator<Item = Record> + '_ {
        self.records
            .chunks(Record::SIZE)
            .filter_map(Record::from_bytes)
    }
}

#[derive(Default)]
struct State {
    open: Batch,
    size: usize,
    ready: VecDeque<Batch>,
    ended: bool,
    abandoned: bool,
}

#[derive(Default)]
pub(crate) struct Stream {
    state: Mutex<State>,
    written: Condvar,
    taken: Condvar,
}

impl Stream {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Appends a record; `blob` becomes its `extra`. False if nobody reads any more.
    pub(crate) fn push(&self, mut record: Record, blob: Option<Vec<u8>>) -> bool {
        let mut state = self.lock();
        if state.abandoned {
            return false;
        }
        if let Some(blob) = blob {
            record.extra = state.open.blobs.len() as u64;
            state.size += blob.len();
            state.open.blobs.push(blob);
        }
        state.open.records.extend_from_slice(&record.to_bytes());
        state.size += Record::SIZE;
        if state.size >= FULL {
            while state.ready.len() >= QUEUE && !state.abandoned {
                state = self
                    .taken
                    .wait(state)
                    .unwrap_or_else(|poisoned| poisoned.into_inner());
            }
            state.close();
            self.written.notify_one();
        }
        !state.abandoned
    }

    /// Appends a batch that is complete. False if nobody reads any more.
    pub(crate) fn push_batch(&self, batch: Batch) -> bool {
        let mut state = self.lock();
        state.close();
        while state.ready.len() >= QUEUE && !state.abandoned {
            state = self
                .taken
                .wait(state)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state.ready.push_back(batch);
        self.written.notify_one();
        !state.abandoned
    }

    /// No record comes any more.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.close();
        state.ended = true;
        self.written.notify_all();
    }

    /// Nobody reads any more: the writer never waits again.
    pub(crate) fn abandon(&self) {
        self.lock().abandoned = true;
        self.taken.notify_all();
    }

    /// The next batch; an empty one if there is none within `timeout`; None at the end.
    pub(crate) fn next(&self, timeout: Duration) -> Option<Batch> {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(batch) = state.ready.pop_front() {
                self.taken.notify_one();
                return Some(batch);
            }
            if state.ended {
                return None;
            }
            let waited = start.elapsed();
            let limit = timeout.min(PATIENCE);
            if waited >= limit && (waited >= timeout || !state.open.is_empty()) {
                return Some(state.take());
            }
            let rest = if waited < limit {
                limit - waited
            } else {
                PATIENCE.min(timeout - waited)
            };
            state = self
                .written
                .wait_timeout(state, rest)
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .0;
        }
    }
}

impl State {
    fn take(&mut self) -> Batch {
        self.size = 0;
        std::mem::take(&mut self.open)
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            let batch = self.take();
            self.ready.push_back(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Kind;
    use std::sync::Arc;

    fn record(clock: u64) -> Record {
        Record {
            clock,
            ..Record::new(Kind::Code, 1)
        }
    }

    #[test]
    fn a_reader_gets_an_open_batch_and_then_the_end() {
        let stream = Stream::default();
        assert!(stream.push(record(1), Some(vec![7])));
        assert!(stream.push(record(2), Some(vec![8, 9])));
        let batch = stream.next(Duration::ZERO).unwrap();
        assert_eq!(
            batch.iter().map(|r| (r.clock, r.extra)).collect::<Vec<_>>(),
            [(1, 0), (2, 1)]
        );
        assert_eq!(batch.blobs, [vec![7], vec![8, 9]]);
        assert_eq!(stream.next(Duration::ZERO), Some(Batch::default()));
        assert!(stream.push(record(3), Some(vec![])));
        stream.end();
        assert_eq!(
            stream
                .next(Duration::ZERO)
                .unwrap()
                .iter()
                .next()
                .unwrap()
                .extra,
            0
        );
        assert_eq!(stream.next(Duration::from_secs(9)), None);
    }

    #[test]
    fn a_writer_waits_for_the_reader_and_loses_nothing() {
        let stream = Arc::new(Stream::default());
        let writer = stream.clone();
        let total = (QUEUE + 8) * FULL / Record::SIZE;
        let thread = std::thread::spawn(move || {
            for clock in 0..total as u64 {
                writer.push(record(clock), None);
            }
            writer.end();
        });
        let mut expected = 0;
        while let Some(batch) = stream.next(Duration::from_secs(60)) {
            assert!(batch.records.len() < FULL + Record::SIZE);
            for record in batch.iter() {
                assert_eq!(record.clock, expected);
                expected += 1;
            }
        }
        thread.join().unwrap();
        assert_eq!(expected, total as u64);
    }

    #[test]
    fn an_abandoned_writer_goes_on() {
        let stream = Stream::default();
        stream.abandon();
        for clock in 0..(QUEUE as u64 + 2) * FULL as u64 / 40 {
            assert!(!stream.push(record(clock), None));
        }
    }
}
