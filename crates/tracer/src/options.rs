//! What to run and how.

use std::ffi::OsString;
use std::path::PathBuf;

/// Where the part of a program begins or ends that is to be traced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edge {
    /// Before the instruction at `offset` of the file `path` is executed.
    Code { path: Vec<u8>, offset: u64 },
    /// After so many instructions of all threads.
    After(u64),
    /// After so many since the start.
    AfterStart(u64),
}

/// A program and the circumstances that it is traced in.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program, looked up in PATH unless it has a slash, and its arguments.
    pub arguments: Vec<OsString>,
    /// NAME=value entries; None is our own environment.
    pub environment: Option<Vec<OsString>>,
    /// The directory to start in; None is our own.
    pub directory: Option<PathBuf>,
    /// Load everything at the addresses that do not change between runs.
    pub no_aslr: bool,
    /// Where to write what was executed.
    pub truth: Option<PathBuf>,
    /// In it runs end at each conditional branch, also where it is not taken: a PSB, from which a decoder can start, can
    /// follow any branch.
    pub cut_at_branches: bool,
    /// Keep tracer and program on one CPU, which halves the cost of a step. The program does not see it.
    pub pin: bool,
    /// Signals that the program gets with their default action although we ignore them. The default is what Rust and
    /// Python programs ignore: SIGPIPE and SIGXFSZ.
    pub default_signals: Vec<i32>,
    /// Signals that the program starts with blocked; None are those that the calling thread blocks.
    pub blocked_signals: Option<Vec<i32>>,
    /// Outside of these tracing is off. The truth goes on.
    pub start: Option<Edge>,
    pub stop: Option<Edge>,
}

impl Options {
    pub fn new(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Options {
        Options {
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: None,
            directory: None,
            no_aslr: false,
            truth: None,
            cut_at_branches: false,
            pin: true,
            default_signals: vec![libc::SIGPIPE, libc::SIGXFSZ],
            blocked_signals: None,
            start: None,
            stop: None,
        }
    }
}
