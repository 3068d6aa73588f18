//! What the tracer saw, as runs for the truth file.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rtit_truth::{RunHash, Writer};

use crate::Error;

/// A run's length must fit its field. No other limit: a cut in the middle would look like a branch's target.
const LONGEST_RUN: u32 = 1 << 31;
/// A recorder that is killed loses at most this much.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Instructions that one thread executes one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenRun {
    start: u64,
    hash: RunHash,
}

/// The truth file, if there is one.
pub(crate) struct Truth {
    /// `Options::cut_at_branches`
    pub(crate) cut_at_branches: bool,
    file: Option<(Writer, PathBuf)>,
    flushed: Instant,
}

impl Truth {
    pub(crate) fn new(path: Option<&Path>, cut_at_branches: bool) -> Result<Truth, Error> {
        let file = match path {
            Some(path) => {
                let writer = Writer::create(path).map_err(|error| Error::Truth {
                    path: path.to_owned(),
                    error: error.to_string(),
                })?;
                Some((writer, path.to_owned()))
            }
            None => None,
        };
        Ok(Truth {
            cut_at_branches,
            file,
            flushed: Instant::now(),
        })
    }

    /// Does `write`; after an error the file is left as it is. Returns that error once.
    fn write(
        &mut self,
        write: impl FnOnce(&mut Writer) -> Result<(), rtit_truth::Error>,
    ) -> Option<String> {
        let (writer, path) = self.file.as_mut()?;
        let error = write(writer).err()?;
        let text = format!("truth file {}: {error}; it ends here", path.display());
        self.file = None;
        Some(text)
    }

    pub(crate) fn thread(&mut self, tid: u32, pid: u32) -> Option<String> {
        self.write(|writer| writer.thread(tid, pid))
    }

    /// Adds an instruction to the thread's run.
    pub(crate) fn retire(&mut self, tid: u32, run: &mut OpenRun, ip: u64) -> Option<String> {
        if run.hash.instructions == 0 {
            run.start = ip;
        }
        run.hash.push(ip);
        if run.hash.instructions >= LONGEST_RUN {
            return self.cut(tid, run);
        }
        None
    }

    /// Ends the thread's run: control was transferred, or an event came.
    pub(crate) fn cut(&mut self, tid: u32, run: &mut OpenRun) -> Option<String> {
        let run = std::mem::take(run);
        let due = self.flushed.elapsed() >= FLUSH_EVERY;
        if due {
            self.flushed = Instant::now();
        }
        self.write(|writer| {
            writer.run(tid, run.start, run.hash.instructions, run.hash.hash)?;
            if due {
                writer.flush()?;
            }
            Ok(())
        })
    }

    pub(crate) fn tracing(&mut self, tid: u32, on: bool) -> Option<String> {
        self.write(|writer| writer.tracing(tid, on))
    }

    pub(crate) fn end(&mut self, tid: u32, status: u32) -> Option<String> {
        self.write(|writer| writer.end(tid, status))
    }

    pub(crate) fn finish(&mut self) -> Option<String> {
        self.write(Writer::finish)
    }
}
