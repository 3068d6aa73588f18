//! Writes what the tracer saw to the truth file, as runs of instructions.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rtit_truth::{RunHash, TruthWriter};

use crate::Error;

/// A run's length must fit its field. There is no shorter limit: a cut within straight code would look like a branch
/// target.
const LONGEST_RUN: u32 = 1 << 31;
/// A killed recorder loses at most this much time.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Consecutive instructions of one thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenRun {
    start: u64,
    hash: RunHash,
}

/// The truth file, if there is one.
pub(crate) struct TruthOutput {
    /// `TraceOptions::cut_at_branches`
    pub(crate) cut_at_branches: bool,
    file: Option<(TruthWriter, PathBuf)>,
    flushed: Instant,
}

impl TruthOutput {
    pub(crate) fn new(path: Option<&Path>, cut_at_branches: bool) -> Result<TruthOutput, Error> {
        let file = match path {
            Some(path) => {
                let writer =
                    TruthWriter::create_truth_file(path).map_err(|error| Error::Truth {
                        path: path.to_owned(),
                        error: error.to_string(),
                    })?;
                Some((writer, path.to_owned()))
            }
            None => None,
        };
        Ok(TruthOutput {
            cut_at_branches,
            file,
            flushed: Instant::now(),
        })
    }

    /// Calls `write`. After an error the file is left as it is; returns that error once.
    fn write_or_close(
        &mut self,
        write: impl FnOnce(&mut TruthWriter) -> Result<(), rtit_truth::Error>,
    ) -> Option<String> {
        let (writer, path) = self.file.as_mut()?;
        let error = write(writer).err()?;
        let text = format!("truth file {}: {error}; it ends here", path.display());
        self.file = None;
        Some(text)
    }

    pub(crate) fn begin_thread(&mut self, tid: u32, pid: u32) -> Option<String> {
        self.write_or_close(|writer| writer.begin_thread(tid, pid))
    }

    /// Adds an instruction to the thread's run.
    pub(crate) fn add_instruction(
        &mut self,
        tid: u32,
        run: &mut OpenRun,
        ip: u64,
    ) -> Option<String> {
        if run.hash.instructions == 0 {
            run.start = ip;
        }
        run.hash.push_instruction(ip);
        if run.hash.instructions >= LONGEST_RUN {
            return self.end_run(tid, run);
        }
        None
    }

    /// Ends the thread's run at a control transfer or an event.
    pub(crate) fn end_run(&mut self, tid: u32, run: &mut OpenRun) -> Option<String> {
        let run = std::mem::take(run);
        let due = self.flushed.elapsed() >= FLUSH_EVERY;
        if due {
            self.flushed = Instant::now();
        }
        self.write_or_close(|writer| {
            writer.add_run(tid, run.start, run.hash.instructions, run.hash.hash)?;
            if due {
                writer.flush_runs()?;
            }
            Ok(())
        })
    }

    pub(crate) fn write_tracing(&mut self, tid: u32, on: bool) -> Option<String> {
        self.write_or_close(|writer| writer.set_tracing(tid, on))
    }

    pub(crate) fn end_thread(&mut self, tid: u32, status: u32) -> Option<String> {
        self.write_or_close(|writer| writer.end_thread(tid, status))
    }

    pub(crate) fn finish_file(&mut self) -> Option<String> {
        self.write_or_close(TruthWriter::mark_complete)
    }
}
