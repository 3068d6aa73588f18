//! Errors of truth files. Offsets are in bytes from the start of the file.

use std::fmt;
use std::io;

#[derive(Debug)]
pub enum Error {
    /// An error of the operating system.
    Io(io::Error),
    /// Not a truth file, or shorter than its header.
    Magic { found: Vec<u8> },
    /// A version that this reader does not know.
    Version { found: u32 },
    /// An unknown record type.
    Type { offset: u64, found: u32 },
    /// A payload size that the record's type or its run count contradicts.
    Size { offset: u64, kind: u32, found: u32 },
    /// Runs, a check or an end of a thread without a THREAD record.
    UnknownThread { offset: u64, tid: u32 },
    /// CHECK or END disagrees with the runs before it.
    Chain {
        offset: u64,
        tid: u32,
        instructions: u64,
        counted: u64,
    },
    /// A reserved field that is not zero.
    Reserved { offset: u64, found: u32 },
    /// A thread had an address range that the recording's filters do not give.
    Range { tid: u32, first: u64, last: u64 },
    /// Bytes after COMPLETE.
    Trailing { offset: u64 },
    /// The thread was not announced to the writer.
    NotAnnounced { tid: u32 },
}

impl Error {
    /// Returns the offset of the error in the file.
    pub fn offset(&self) -> Option<u64> {
        match *self {
            Error::Io(_) | Error::NotAnnounced { .. } | Error::Range { .. } => None,
            Error::Magic { .. } => Some(0),
            Error::Version { .. } => Some(12),
            Error::Type { offset, .. }
            | Error::Size { offset, .. }
            | Error::UnknownThread { offset, .. }
            | Error::Chain { offset, .. }
            | Error::Reserved { offset, .. }
            | Error::Trailing { offset } => Some(offset),
        }
    }
}

impl Error {
    /// Returns the message without the offset.
    pub fn message(&self) -> String {
        match self {
            Error::Io(error) => format!("{error}"),
            Error::Magic { found } => {
                format!(
                    "not a truth file: it begins with '{}'",
                    found.escape_ascii()
                )
            }
            Error::Range { tid, first, last } => format!(
                "thread {tid} was traced with the range {first:#x} to {last:#x}, which no filter of the recording gives"
            ),
            Error::Version { found } => format!("version {found} of the truth form is not known"),
            Error::Type { found, .. } => format!("no record has type {found}"),
            Error::Size { kind, found, .. } => {
                format!("a record of type {kind} cannot have a payload of {found} bytes")
            }
            Error::UnknownThread { tid, .. } => format!("thread {tid} has no THREAD record"),
            Error::Chain {
                tid,
                instructions,
                counted,
                ..
            } => format!(
                "the runs of thread {tid} do not give the count or hash recorded for them: \
                 {instructions} instructions recorded, {counted} counted"
            ),
            Error::Reserved { found, .. } => format!("a reserved field holds {found:#x}"),
            Error::Trailing { .. } => "bytes follow the COMPLETE record".to_string(),
            Error::NotAnnounced { tid } => format!("thread {tid} was not announced"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        match self.offset() {
            Some(offset) => write!(f, " (offset {offset:#x})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error::Io(error)
    }
}
