//! The error of this crate: why a program cannot be traced.

use std::fmt;
use std::io;
use std::path::PathBuf;

#[derive(Debug)]
pub enum Error {
    /// No such program, neither as a path nor in PATH.
    NotFound { program: String },
    /// The program is there and the kernel does not run it.
    NotExecutable { path: PathBuf, error: io::Error },
    /// The directory to start in.
    Directory { path: PathBuf, error: io::Error },
    /// An argument or environment entry with a NUL byte in it, or no argument at all.
    Argument { what: String },
    /// The kernel does not let us trace.
    PtraceForbidden { why: String },
    /// A program that runs already cannot be attached to.
    Attach { why: String },
    /// The truth file cannot be written.
    Truth { path: PathBuf, error: String },
    /// A system call that should not fail did.
    System {
        call: &'static str,
        error: io::Error,
    },
}

impl Error {
    /// What a command exits with, as `env` and `sh` do: 127 not found, 126 not executable, 125 our own failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::NotFound { .. } => 127,
            Error::NotExecutable { .. } => 126,
            _ => 125,
        }
    }

    pub(crate) fn system(call: &'static str) -> Error {
        Error::System {
            call,
            error: io::Error::last_os_error(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotFound { program } => write!(f, "{program}: no such program"),
            Error::NotExecutable { path, error } => {
                write!(f, "{}: cannot be executed: {error}", path.display())
            }
            Error::Directory { path, error } => {
                write!(f, "{}: cannot start there: {error}", path.display())
            }
            Error::Argument { what } => f.write_str(what),
            Error::PtraceForbidden { why } => write!(f, "tracing is forbidden here: {why}"),
            Error::Attach { why } => f.write_str(why),
            Error::Truth { path, error } => write!(f, "{}: {error}", path.display()),
            Error::System { call, error } => write!(f, "{call}: {error}"),
        }
    }
}

impl std::error::Error for Error {}
