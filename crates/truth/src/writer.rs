//! Writes a truth file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::format::{
    CHECK, COMPLETE, END, MAGIC, RUNS, RUNS_HEADER_SIZE, RUN_SIZE, THREAD, TRACING, VERSION,
};
use crate::{Error, PathHash, PathRun};

/// A thread's buffered runs are written before they take more bytes than this.
const FLUSH_SIZE: usize = 64 * 1024;
const FLUSH_RUNS: usize = (FLUSH_SIZE - 16) / RUN_SIZE as usize;
const CHECK_EVERY: u64 = 1 << 20;

#[derive(Default)]
struct BufferedRuns {
    runs: Vec<u8>,
    count: usize,
    chain: PathHash,
    checked: u64,
    ended: bool,
}

/// Writes a truth file. Every record reaches the operating system in one write, so that a killed recorder leaves a
/// readable prefix. Without [`TruthWriter::mark_complete`] the file counts as one.
pub struct TruthWriter<W: Write = File> {
    output: W,
    threads: BTreeMap<u32, BufferedRuns>,
}

impl TruthWriter<File> {
    /// Creates the file, or empties it, readable only by its owner. Does not follow a symbolic link to nothing.
    pub fn create_truth_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let there = File::options().write(true).truncate(true).open(&path);
        let file = match there {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut options = File::options();
                options.write(true).create_new(true);
                #[cfg(unix)]
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
                options.open(&path)?
            }
            there => there?,
        };
        TruthWriter::new(file)
    }
}

impl<W: Write> TruthWriter<W> {
    /// Writes the header to `output`, which should be unbuffered.
    pub fn new(mut output: W) -> Result<Self, Error> {
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        output.write_all(&header)?;
        Ok(TruthWriter {
            output,
            threads: BTreeMap::new(),
        })
    }

    /// Announces a thread. A tid that is announced again continues its path (exec by another thread), or starts a new
    /// one after its end.
    pub fn begin_thread(&mut self, tid: u32, pid: u32) -> Result<(), Error> {
        self.flush_thread_runs(tid)?;
        let pending = self.threads.entry(tid).or_default();
        if pending.ended {
            *pending = BufferedRuns::default();
        }
        let mut payload = [0u8; 8];
        payload[..4].copy_from_slice(&tid.to_le_bytes());
        payload[4..].copy_from_slice(&pid.to_le_bytes());
        write_record(&mut self.output, THREAD, &payload)
    }

    /// Adds a run; skips one without instructions.
    #[inline]
    pub fn add_run(
        &mut self,
        tid: u32,
        start: u64,
        instructions: u32,
        hash: u64,
    ) -> Result<(), Error> {
        if instructions == 0 {
            return Ok(());
        }
        let pending = self
            .threads
            .get_mut(&tid)
            .ok_or(Error::NotAnnounced { tid })?;
        pending.runs.extend_from_slice(&start.to_le_bytes());
        pending.runs.extend_from_slice(&instructions.to_le_bytes());
        pending.runs.extend_from_slice(&0u32.to_le_bytes());
        pending.runs.extend_from_slice(&hash.to_le_bytes());
        pending.count += 1;
        pending.chain.push_run(&PathRun {
            start,
            instructions,
            hash,
        });
        if pending.chain.instructions - pending.checked >= CHECK_EVERY {
            pending.write_runs(&mut self.output, tid)?;
            pending.checked = pending.chain.instructions;
            path_hash_record(&mut self.output, CHECK, tid, 0, pending.chain)?;
        } else if pending.count >= FLUSH_RUNS {
            pending.write_runs(&mut self.output, tid)?;
        }
        Ok(())
    }

    /// Writes that TraceEn of the thread's unit is set or cleared for good.
    pub fn set_tracing(&mut self, tid: u32, on: bool) -> Result<(), Error> {
        self.flush_thread_runs(tid)?;
        let mut payload = [0u8; 8];
        payload[..4].copy_from_slice(&tid.to_le_bytes());
        payload[4] = on.into();
        write_record(&mut self.output, TRACING, &payload)
    }

    /// Ends a thread with its wait status.
    pub fn end_thread(&mut self, tid: u32, status: u32) -> Result<(), Error> {
        let pending = self
            .threads
            .get_mut(&tid)
            .ok_or(Error::NotAnnounced { tid })?;
        pending.write_runs(&mut self.output, tid)?;
        pending.runs = Vec::new();
        pending.ended = true;
        path_hash_record(&mut self.output, END, tid, status, pending.chain)
    }

    /// Returns number and hash of a thread's instructions so far.
    pub fn path_hash_so_far(&self, tid: u32) -> Option<PathHash> {
        self.threads.get(&tid).map(|pending| pending.chain)
    }

    /// Writes the buffered runs.
    pub fn flush_runs(&mut self) -> Result<(), Error> {
        for (&tid, pending) in &mut self.threads {
            pending.write_runs(&mut self.output, tid)?;
        }
        Ok(self.output.flush()?)
    }

    /// Writes the buffered runs and marks the file as complete.
    pub fn mark_complete(&mut self) -> Result<(), Error> {
        self.flush_runs()?;
        write_record(&mut self.output, COMPLETE, &[])?;
        Ok(self.output.flush()?)
    }

    fn flush_thread_runs(&mut self, tid: u32) -> Result<(), Error> {
        match self.threads.get_mut(&tid) {
            Some(pending) => pending.write_runs(&mut self.output, tid),
            None => Ok(()),
        }
    }
}

impl BufferedRuns {
    fn write_runs(&mut self, output: &mut impl Write, tid: u32) -> Result<(), Error> {
        if self.count == 0 {
            return Ok(());
        }
        // FLUSH_RUNS bounds the count, so that the size fits.
        let mut bytes = Vec::with_capacity(self.runs.len() + 16);
        bytes.extend_from_slice(&RUNS.to_le_bytes());
        bytes.extend_from_slice(&(RUNS_HEADER_SIZE + RUN_SIZE * self.count as u32).to_le_bytes());
        bytes.extend_from_slice(&tid.to_le_bytes());
        bytes.extend_from_slice(&(self.count as u32).to_le_bytes());
        bytes.append(&mut self.runs);
        self.count = 0;
        Ok(output.write_all(&bytes)?)
    }
}

fn write_record(output: &mut impl Write, kind: u32, payload: &[u8]) -> Result<(), Error> {
    let size = u32::try_from(payload.len()).map_err(|error| Error::Io(io::Error::other(error)))?;
    let mut bytes = Vec::with_capacity(payload.len() + 8);
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(payload);
    Ok(output.write_all(&bytes)?)
}

fn path_hash_record(
    output: &mut impl Write,
    kind: u32,
    tid: u32,
    value: u32,
    chain: PathHash,
) -> Result<(), Error> {
    let mut payload = [0u8; 24];
    payload[..4].copy_from_slice(&tid.to_le_bytes());
    payload[4..8].copy_from_slice(&value.to_le_bytes());
    payload[8..16].copy_from_slice(&chain.instructions.to_le_bytes());
    payload[16..].copy_from_slice(&chain.hash.to_le_bytes());
    write_record(output, kind, &payload)
}
