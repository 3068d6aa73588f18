//! The program to run, and how.

use std::ffi::OsString;
use std::path::PathBuf;

/// An edge of the recording window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WindowEdge {
    /// Before the instruction at `offset` of file `path`.
    Code { path: Vec<u8>, offset: u64 },
    /// After so many instructions of all threads.
    After(u64),
    /// After so many instructions since the start edge.
    AfterStart(u64),
}

/// A program and the conditions under which it is traced.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program, looked up in PATH unless it has a slash, and its arguments.
    pub arguments: Vec<OsString>,
    /// Entries NAME=value; None: the environment of this process.
    pub environment: Option<Vec<OsString>>,
    /// The directory to start in; None: that of this process.
    pub directory: Option<PathBuf>,
    /// Load everything at addresses that do not change between runs.
    pub no_aslr: bool,
    /// The truth file to write.
    pub truth: Option<PathBuf>,
    /// End its runs at each conditional branch, also at those not taken: a PSB, from which a decoder can start, can
    /// follow any branch.
    pub cut_at_branches: bool,
    /// Run tracer and program on one CPU, which halves the cost of a step. The program does not see it.
    pub pin: bool,
    /// Signals that the program gets with their default action although this process ignores them. The default is what
    /// Rust and Python programs ignore: SIGPIPE and SIGXFSZ.
    pub default_signals: Vec<i32>,
    /// Signals that the program starts with blocked; None: those that the calling thread blocks.
    pub blocked_signals: Option<Vec<i32>>,
    /// Tracing is off outside of these edges. The truth file has everything.
    pub start: Option<WindowEdge>,
    pub stop: Option<WindowEdge>,
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
