//! Reads a truth file as a stream of items, in memory bounded by the number of threads; and its threads: a summary, and
//! the runs of one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range as Extent;
use std::path::Path;

use crate::format::{
    CHECK, COMPLETE, END, HEADER_SIZE, MAGIC, MOST_RANGE, RANGE, RECORD_HEADER_SIZE, RUNS,
    RUNS_HEADER_SIZE, RUN_SIZE, THREAD, TRACING, VERSION,
};
use crate::{Error, FilterRange, PathHash, PathRun};

/// An item of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TruthItem {
    Thread {
        tid: u32,
        pid: u32,
    },
    Run {
        tid: u32,
        run: PathRun,
    },
    Check {
        tid: u32,
        chain: PathHash,
    },
    End {
        tid: u32,
        status: u32,
        chain: PathHash,
    },
    /// An address range of the thread was set; number 0 removes the ranges before.
    Range {
        tid: u32,
        range: FilterRange,
    },
    /// The thread's TraceEn was set or cleared for good.
    Tracing {
        tid: u32,
        on: bool,
    },
    Complete,
}

/// Reads a truth file and checks every CHECK and END against the runs before it. A file that ends early, even within a
/// record, is a prefix: its items end without [`TruthItem::Complete`].
pub struct TruthReader<R: Read = File> {
    input: BufReader<R>,
    offset: u64,
    /// Runs left in the current RUNS record.
    left: u32,
    tid: u32,
    chains: HashMap<u32, PathHash>,
    /// Threads that have ended; their numbers can be reused.
    ended: HashSet<u32>,
    /// The only thread to read, and the end of its last record.
    only: Option<(u32, u64)>,
    done: bool,
    complete: bool,
}

impl TruthReader<File> {
    pub fn open_truth_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        TruthReader::new(File::open(path)?)
    }
}

impl<R: Read + Seek> TruthReader<R> {
    /// Reads only one thread, with its records in `extent` ([`crate::ThreadSummary::extent`]). Runs of others are
    /// skipped and their hashes not checked: the extent comes from a read of the whole file.
    pub fn for_thread(mut self, tid: u32, extent: &Extent<u64>) -> Result<Self, Error> {
        self.input.seek(SeekFrom::Start(extent.start))?;
        self.offset = extent.start;
        self.only = Some((tid, extent.end));
        Ok(self)
    }
}

impl<R: Read> TruthReader<R> {
    /// Reads and checks the header.
    pub fn new(input: R) -> Result<Self, Error> {
        let mut input = BufReader::with_capacity(1 << 16, input);
        let mut header = [0u8; HEADER_SIZE as usize];
        let size = read_until_full(&mut input, &mut header)?;
        let (magic, version) = header.split_at(MAGIC.len());
        if size < header.len() || magic != MAGIC {
            return Err(Error::Magic {
                found: header.get(..size.min(12)).unwrap_or(&[]).to_vec(),
            });
        }
        let version = read_u32_at(version, 0);
        if version != VERSION {
            return Err(Error::Version { found: version });
        }
        Ok(TruthReader {
            input,
            offset: HEADER_SIZE,
            left: 0,
            tid: 0,
            chains: HashMap::new(),
            ended: HashSet::new(),
            only: None,
            done: false,
            complete: false,
        })
    }

    /// Returns whether COMPLETE has been read.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the number of bytes read.
    pub fn bytes_read(&self) -> u64 {
        self.offset
    }

    /// Returns number and hash of the instructions of a thread so far; of the last thread with this number.
    pub fn path_hash_so_far(&self, tid: u32) -> Option<PathHash> {
        self.chains.get(&tid).copied()
    }

    /// Returns the runs of one thread, in order.
    pub fn thread_runs(self, tid: u32) -> impl Iterator<Item = Result<PathRun, Error>> {
        self.filter_map(move |item| match item {
            Ok(TruthItem::Run { tid: other, run }) => (other == tid).then_some(Ok(run)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    }

    fn reads_thread(&self, tid: u32) -> bool {
        self.only.is_none_or(|(only, _)| only == tid)
    }

    /// Returns the next item; None at the end of the file, or where a prefix ends.
    pub fn next_item(&mut self) -> Result<Option<TruthItem>, Error> {
        if self.done {
            return Ok(None);
        }
        let result = self.read_item();
        // After an error the position in the file is meaningless.
        self.done = !matches!(result, Ok(Some(_)));
        result
    }

    fn read_item(&mut self) -> Result<Option<TruthItem>, Error> {
        loop {
            if self.left > 0 {
                return self.read_run();
            }
            let offset = self.offset;
            if self.only.is_some_and(|(_, end)| offset >= end) {
                return Ok(None);
            }
            let mut header = [0u8; RECORD_HEADER_SIZE as usize];
            let whole = self.fill_bytes(&mut header)?;
            if self.complete && self.offset != offset {
                return Err(Error::Trailing { offset });
            }
            if !whole {
                return Ok(None);
            }
            let (kind, size) = (read_u32_at(&header, 0), read_u32_at(&header, 4));
            let bad_size = Error::Size {
                offset,
                kind,
                found: size,
            };
            let item = match kind {
                THREAD if size == 8 => self.read_thread()?,
                RUNS if size >= RUNS_HEADER_SIZE => {
                    let mut payload = [0u8; RUNS_HEADER_SIZE as usize];
                    if !self.fill_bytes(&mut payload)? {
                        return Ok(None);
                    }
                    let (tid, count) = (read_u32_at(&payload, 0), read_u32_at(&payload, 4));
                    if count.checked_mul(RUN_SIZE) != size.checked_sub(RUNS_HEADER_SIZE) {
                        return Err(bad_size);
                    }
                    if !self.reads_thread(tid) {
                        let runs = u64::from(size - RUNS_HEADER_SIZE);
                        self.offset +=
                            io::copy(&mut self.input.by_ref().take(runs), &mut io::sink())?;
                        continue;
                    }
                    if !self.chains.contains_key(&tid) {
                        return Err(Error::UnknownThread { offset, tid });
                    }
                    self.tid = tid;
                    self.left = count;
                    continue;
                }
                CHECK | END if size == 24 => self.read_check_or_end(kind, offset)?,
                RANGE if size == 24 => self.read_range(offset)?,
                TRACING if size == 8 => self.read_tracing(offset)?,
                COMPLETE if size == 0 => {
                    self.complete = true;
                    Some(TruthItem::Complete)
                }
                THREAD | RUNS | CHECK | END | COMPLETE | RANGE | TRACING => return Err(bad_size),
                _ => {
                    return Err(Error::Type {
                        offset,
                        found: kind,
                    })
                }
            };
            return Ok(item);
        }
    }

    fn read_thread(&mut self) -> Result<Option<TruthItem>, Error> {
        let mut payload = [0u8; 8];
        if !self.fill_bytes(&mut payload)? {
            return Ok(None);
        }
        let (tid, pid) = (read_u32_at(&payload, 0), read_u32_at(&payload, 4));
        let starts_again = self.ended.remove(&tid);
        let chain = self.path_hash_of_thread(tid);
        if starts_again {
            *chain = PathHash::default();
        }
        Ok(Some(TruthItem::Thread { tid, pid }))
    }

    fn path_hash_of_thread(&mut self, tid: u32) -> &mut PathHash {
        self.chains.entry(tid).or_default()
    }

    fn read_run(&mut self) -> Result<Option<TruthItem>, Error> {
        let offset = self.offset;
        let mut payload = [0u8; RUN_SIZE as usize];
        if !self.fill_bytes(&mut payload)? {
            return Ok(None);
        }
        self.left -= 1;
        let flags = read_u32_at(&payload, 12);
        if flags != 0 {
            return Err(Error::Reserved {
                offset: offset + 12,
                found: flags,
            });
        }
        let run = PathRun {
            start: read_u64_at(&payload, 0),
            instructions: read_u32_at(&payload, 8),
            hash: read_u64_at(&payload, 16),
        };
        let tid = self.tid;
        self.path_hash_of_thread(tid).push_run(&run);
        Ok(Some(TruthItem::Run { tid, run }))
    }

    fn read_check_or_end(&mut self, kind: u32, offset: u64) -> Result<Option<TruthItem>, Error> {
        let mut payload = [0u8; 24];
        if !self.fill_bytes(&mut payload)? {
            return Ok(None);
        }
        let (tid, value) = (read_u32_at(&payload, 0), read_u32_at(&payload, 4));
        let chain = PathHash {
            instructions: read_u64_at(&payload, 8),
            hash: read_u64_at(&payload, 16),
        };
        let counted = match self.reads_thread(tid) {
            true => self
                .path_hash_so_far(tid)
                .ok_or(Error::UnknownThread { offset, tid })?,
            false => chain,
        };
        if counted != chain {
            return Err(Error::Chain {
                offset,
                tid,
                instructions: chain.instructions,
                counted: counted.instructions,
            });
        }
        if kind == END {
            self.ended.insert(tid);
            return Ok(Some(TruthItem::End {
                tid,
                status: value,
                chain,
            }));
        }
        if value != 0 {
            return Err(Error::Reserved {
                offset: offset + 12,
                found: value,
            });
        }
        Ok(Some(TruthItem::Check { tid, chain }))
    }

    fn read_range(&mut self, offset: u64) -> Result<Option<TruthItem>, Error> {
        let mut payload = [0u8; 24];
        if !self.fill_bytes(&mut payload)? {
            return Ok(None);
        }
        let (tid, what) = (read_u32_at(&payload, 0), read_u32_at(&payload, 4));
        if !matches!(what >> 16, 1 | 2) || what & 0xffff > MOST_RANGE {
            return Err(Error::Reserved {
                offset: offset + 12,
                found: what,
            });
        }
        let range = FilterRange {
            number: what & 0xffff,
            stop: what >> 16 == 2,
            first: read_u64_at(&payload, 8),
            last: read_u64_at(&payload, 16),
        };
        Ok(Some(TruthItem::Range { tid, range }))
    }

    fn read_tracing(&mut self, offset: u64) -> Result<Option<TruthItem>, Error> {
        let mut payload = [0u8; 8];
        if !self.fill_bytes(&mut payload)? {
            return Ok(None);
        }
        let (tid, value) = (read_u32_at(&payload, 0), read_u32_at(&payload, 4));
        if value > 1 {
            return Err(Error::Reserved {
                offset: offset + 12,
                found: value,
            });
        }
        let on = value == 1;
        Ok(Some(TruthItem::Tracing { tid, on }))
    }

    /// Fills `bytes`; false at the end of the file.
    fn fill_bytes(&mut self, bytes: &mut [u8]) -> Result<bool, Error> {
        let size = read_until_full(&mut self.input, bytes)?;
        self.offset += size as u64;
        Ok(size == bytes.len())
    }
}

impl<R: Read> Iterator for TruthReader<R> {
    type Item = Result<TruthItem, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_item().transpose()
    }
}

/// The summary of one thread.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ThreadSummary {
    pub tid: u32,
    pub pid: u32,
    /// Number and hash of the instructions of all its runs.
    pub chain: PathHash,
    pub runs: u64,
    /// Wait status; None if the file does not contain the thread's end.
    pub status: Option<u32>,
    /// From the start of its first record to the end of its last one (or the last item of a file that is cut off
    /// there).
    pub extent: Extent<u64>,
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
pub fn summarize_truth_file<R: Read>(mut reader: TruthReader<R>) -> Result<TruthSummary, Error> {
    let mut summary = TruthSummary::default();
    let mut indices: BTreeMap<u32, usize> = BTreeMap::new();
    loop {
        let start = reader.bytes_read();
        let Some(item) = reader.next_item()? else {
            break;
        };
        let tid = match item {
            TruthItem::Thread { tid, .. }
            | TruthItem::Run { tid, .. }
            | TruthItem::End { tid, .. } => tid,
            _ => continue,
        };
        let index = *indices.entry(tid).or_insert_with(|| {
            summary.threads.push(ThreadSummary {
                tid,
                extent: start..start,
                ..ThreadSummary::default()
            });
            summary.threads.len() - 1
        });
        let Some(thread) = summary.threads.get_mut(index) else {
            continue;
        };
        thread.extent.end = reader.bytes_read();
        match item {
            TruthItem::Thread { pid, .. } => thread.pid = pid,
            TruthItem::Run { run, .. } => {
                thread.runs += 1;
                thread.chain.push_run(&run);
                thread.status = None;
            }
            TruthItem::End { status, .. } => thread.status = Some(status),
            _ => {}
        }
    }
    summary.complete = reader.is_complete();
    Ok(summary)
}

fn read_until_full(input: &mut impl Read, bytes: &mut [u8]) -> Result<usize, Error> {
    let mut size = 0;
    while let Some(rest) = bytes.get_mut(size..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(n) => size += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Io(error)),
        }
    }
    Ok(size)
}

fn read_u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |four| u32::from_le_bytes(*four))
}

fn read_u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |eight| u64::from_le_bytes(*eight))
}
