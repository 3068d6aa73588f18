//! The threads of a truth file: a summary, and the runs of one thread.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use crate::{Chain, Error, Run, TruthItem, TruthReader};

/// The summary of one thread.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ThreadSummary {
    pub tid: u32,
    pub pid: u32,
    /// Number and hash of the instructions of all its runs.
    pub chain: Chain,
    pub runs: u64,
    /// Wait status; None if the file does not contain the thread's end.
    pub status: Option<u32>,
    /// From the start of its first record to the end of its last one (or the last item of a file that is cut off
    /// there).
    pub extent: Range<u64>,
}

/// The summary of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TruthSummary {
    /// In the order of their first THREAD records.
    pub threads: Vec<ThreadSummary>,
    /// The recorder finished.
    pub complete: bool,
}

/// Reads a whole file and sums it up. All its checks hold when this returns.
pub fn summarize<R: Read>(mut reader: TruthReader<R>) -> Result<TruthSummary, Error> {
    let mut contents = TruthSummary::default();
    let mut places: BTreeMap<u32, usize> = BTreeMap::new();
    loop {
        let start = reader.offset();
        let Some(item) = reader.next_item()? else {
            break;
        };
        let tid = match item {
            TruthItem::Thread { tid, .. }
            | TruthItem::Run { tid, .. }
            | TruthItem::End { tid, .. } => tid,
            TruthItem::Check { .. }
            | TruthItem::Range { .. }
            | TruthItem::Tracing { .. }
            | TruthItem::Complete => continue,
        };
        let place = *places.entry(tid).or_insert_with(|| {
            contents.threads.push(ThreadSummary {
                tid,
                extent: start..start,
                ..ThreadSummary::default()
            });
            contents.threads.len() - 1
        });
        let Some(thread) = contents.threads.get_mut(place) else {
            continue;
        };
        thread.extent.end = reader.offset();
        match item {
            TruthItem::Thread { pid, .. } => thread.pid = pid,
            TruthItem::Run { run, .. } => {
                thread.runs += 1;
                thread.chain.push(&run);
                thread.status = None;
            }
            TruthItem::End { status, .. } => thread.status = Some(status),
            _ => {}
        }
    }
    contents.complete = reader.is_complete();
    Ok(contents)
}

/// The runs of one thread, in order.
pub struct ThreadRuns<R: Read = File> {
    reader: TruthReader<R>,
    tid: u32,
}

impl ThreadRuns<File> {
    pub fn open(path: impl AsRef<Path>, tid: u32) -> Result<Self, Error> {
        Ok(ThreadRuns::new(TruthReader::open(path)?, tid))
    }
}

impl<R: Read> ThreadRuns<R> {
    pub fn new(reader: TruthReader<R>, tid: u32) -> Self {
        ThreadRuns { reader, tid }
    }
}

impl<R: Read> Iterator for ThreadRuns<R> {
    type Item = Result<Run, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.reader.next_item() {
                Ok(Some(TruthItem::Run { tid, run })) if tid == self.tid => return Some(Ok(run)),
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
