//! What reading may cost, and why it ends.

use gimli::{EndianSlice, Error, RunTimeEndian};

pub(crate) type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// What may be done for each byte of the tables, and for a file anyway: bytes that are gone over, or about as much.
const FOR_EACH: u64 = 4;
const FREE: u64 = 1 << 20;
/// What is done between two questions.
const PERIOD: u64 = 1 << 18;

/// Why reading ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// This unit tells nothing more that makes sense.
    Broken,
    /// The file asks for more than a file can tell.
    Enough,
    /// Whoever asked wants no answer any more.
    GaveUp,
}

pub(crate) type Told<T> = Result<T, Stop>;

impl From<Error> for Stop {
    fn from(_: Error) -> Stop {
        Stop::Broken
    }
}

/// What may still be done.
pub(crate) struct Work<'a> {
    left: u64,
    /// Of what is left when it is asked the next time.
    ask: u64,
    gives_up: &'a dyn Fn() -> bool,
}

impl<'a> Work<'a> {
    /// With tables of so many bytes.
    pub fn of(bytes: u64, gives_up: &'a dyn Fn() -> bool) -> Work<'a> {
        let left = bytes.saturating_mul(FOR_EACH).saturating_add(FREE);
        Work {
            left,
            ask: left,
            gives_up,
        }
    }

    /// Something of this cost is done now.
    #[inline]
    pub fn take(&mut self, cost: u64) -> Told<()> {
        self.left = self.left.checked_sub(cost).ok_or(Stop::Enough)?;
        match self.left <= self.ask {
            true => self.asked(),
            false => Ok(()),
        }
    }

    #[cold]
    fn asked(&mut self) -> Told<()> {
        self.ask = self.left.saturating_sub(PERIOD);
        match (self.gives_up)() {
            true => Err(Stop::GaveUp),
            false => Ok(()),
        }
    }
}
