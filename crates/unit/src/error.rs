//! Errors in settings, events and saved states.

use std::fmt;

/// All errors of this crate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// A setting with a value that it cannot have.
    Setting {
        name: String,
        value: String,
        expected: String,
    },
    /// No setting has this name.
    UnknownSetting(String),
    /// More address ranges than a processor has.
    TooManyRanges(usize),
    /// The clock is lower than before.
    ClockWentBack { clock: u64, was: u64 },
    /// The clock is higher than packets can express, or skips more periods than a trace can hold.
    ClockTooHigh { clock: u64, limit: u64 },
    /// A record with a kind that no capture event has.
    UnknownKind(u8),
    /// An invalid capture event at a byte offset.
    Record { offset: usize, cause: Box<Error> },
    /// Capture events that end within a record, which starts at `offset`.
    TruncatedRecord { offset: usize, size: usize },
    /// A saved state with a value that no unit of these settings has.
    State { field: &'static str, value: u64 },
    /// Bytes that are no saved state.
    StateSize { size: usize },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Setting {
                name,
                value,
                expected,
            } => write!(f, "{name} is {expected}, not {value}"),
            Error::UnknownSetting(name) => write!(f, "no setting is called {name:?}"),
            Error::TooManyRanges(count) => {
                write!(f, "a processor has at most 4 address ranges, not {count}")
            }
            Error::ClockWentBack { clock, was } => {
                write!(f, "the clock went back to {clock}, it was {was}")
            }
            Error::ClockTooHigh { clock, limit } => {
                write!(f, "the clock went to {clock}, its limit is {limit}")
            }
            Error::UnknownKind(kind) => write!(f, "no capture event has kind {kind}"),
            Error::Record { offset, cause } => write!(f, "capture event at {offset:#x}: {cause}"),
            Error::TruncatedRecord { offset, size } => {
                write!(f, "capture event at {offset:#x} has {size} bytes of 40")
            }
            Error::State { field, value } => {
                write!(f, "saved state: {field} cannot be {value:#x}")
            }
            Error::StateSize { size } => write!(f, "these {size} bytes are no saved state"),
        }
    }
}

impl std::error::Error for Error {}
