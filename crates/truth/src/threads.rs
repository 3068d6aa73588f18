//! A file by threads: a summary, and the runs of one thread.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use crate::{Chain, Error, Item, Reader, Run};

/// What a file says of one thread.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Thread {
    pub tid: u32,
    pub pid: u32,
    /// Instructions and hash of all its runs in the file.
    pub chain: Chain,
    pub runs: u64,
    /// Wait status; None when the file does not hold the thread's end.
    pub status: Option<u32>,
    /// Where its first record begins and its last one ends, or the last item of a file that was cut there.
    pub extent: Range<u64>,
}

/// A summary of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contents {
    /// In the order of their first THREAD record.
    pub threads: Vec<Thread>,
    /// Whether the recorder came to its end.
    pub complete: bool,
}

/// Reads a whole file and sums it up; every check in it holds when this returns.
pub fn threads<R: Read>(mut reader: Reader<R>) -> Result<Contents, Error> {
    let mut contents = Contents::default();
    let mut places: BTreeMap<u32, usize> = BTreeMap::new();
    loop {
        let start = reader.offset();
        let Some(item) = reader.next_item()? else {
            break;
        };
        let tid = match item {
            Item::Thread { tid, .. } | Item::Run { tid, .. } | Item::End { tid, .. } => tid,
            Item::Check { .. } | Item::Range { .. } | Item::Tracing { .. } | Item::Complete => {
                continue
            }
        };
        let place = *places.entry(tid).or_insert_with(|| {
            contents.threads.push(Thread {
                tid,
                extent: start..start,
                ..Thread::default()
            });
            contents.threads.len() - 1
        });
        let Some(thread) = contents.threads.get_mut(place) else {
            continue;
        };
        thread.extent.end = reader.offset();
        match item {
            Item::Thread { pid, .. } => thread.pid = pid,
            Item::Run { run, .. } => {
                thread.runs += 1;
                thread.chain.push(&run);
                thread.status = None;
            }
            Item::End { status, .. } => thread.status = Some(status),
            _ => {}
        }
    }
    contents.complete = reader.complete();
    Ok(contents)
}

/// The runs of one thread, in order.
pub struct ThreadRuns<R: Read = File> {
    reader: Reader<R>,
    tid: u32,
}

impl ThreadRuns<File> {
    pub fn open(path: impl AsRef<Path>, tid: u32) -> Result<Self, Error> {
        Ok(ThreadRuns::new(Reader::open(path)?, tid))
    }
}

impl<R: Read> ThreadRuns<R> {
    pub fn new(reader: Reader<R>, tid: u32) -> Self {
        ThreadRuns { reader, tid }
    }
}

impl<R: Read> Iterator for ThreadRuns<R> {
    type Item = Result<Run, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.reader.next_item() {
                Ok(Some(Item::Run { tid, run })) if tid == self.tid => return Some(Ok(run)),
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
