//! A space as of a time; the cursor moves forward only.
//!
//! Rule of early visibility. A life of a space runs from one `clear` to the next. Where nothing was
//! mapped before in the same life, bytes can be read from the start of that life, ahead of their
//! own time: no other bytes could be meant, the time estimates of a decoder may lag, and a space
//! that only grows then needs no invalidation at all. Everything else (replacing, removing, mapping
//! again after removal) takes effect exactly at its time.

use std::sync::Arc;

use crate::change::{Action, Change};
use crate::pager::Pager;
use crate::ranges::Ranges;
use crate::sections::{Section, Sections};

/// What a decoder must forget after `View::advance`. Ranges are half-open, hold bytes that differ,
/// are gone, or could not be read until now, and may touch or overlap. What could be read early is
/// no news when its time comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    None,
    Ranges(Vec<(u64, u64)>),
    All,
}

/// What some changes did.
#[derive(Default)]
pub(crate) struct Difference {
    /// What was readable and differs or is gone.
    gone: Vec<(u64, u64)>,
    /// What was not readable.
    come: Vec<(u64, u64)>,
    /// A life ended in which something was readable.
    died: bool,
    /// A life began in which something is readable.
    born: bool,
}

impl Difference {
    /// Whether bytes that were readable changed or went.
    pub(crate) fn is_loss(&self) -> bool {
        self.died || !self.gone.is_empty()
    }

    fn told(mut self) -> Changed {
        if self.died || self.born {
            return Changed::All;
        }
        self.gone.extend(self.come);
        if self.gone.is_empty() {
            Changed::None
        } else {
            Changed::Ranges(self.gone)
        }
    }
}

#[derive(Clone, Debug)]
pub struct View {
    changes: Arc<Vec<Arc<Change>>>,
    /// Index of the first change whose time has not come.
    next: usize,
    sections: Sections,
    pager: Option<Arc<Pager>>,
}

impl View {
    pub(crate) fn new(changes: Arc<Vec<Arc<Change>>>, pager: Option<Arc<Pager>>) -> View {
        let sections = first_sections(&changes, 0);
        View {
            changes,
            next: 0,
            sections,
            pager,
        }
    }

    /// Moves to `time`: every change with a time up to and including it is in effect. A time before
    /// the last one changes nothing.
    pub fn advance(&mut self, time: u64) -> Changed {
        self.advance_to(self.count(time))
    }

    /// How many changes are in effect.
    pub fn changes(&self) -> usize {
        self.next
    }

    /// As `advance`, until so many changes are in effect.
    pub fn advance_to(&mut self, count: usize) -> Changed {
        if count <= self.next {
            return Changed::None;
        }
        self.go(count).told()
    }

    /// As `advance`, for what counts changes.
    pub(crate) fn pass(&mut self, time: u64) -> Difference {
        self.go(self.count(time))
    }

    /// How many changes are in effect at `time`.
    fn count(&self, time: u64) -> usize {
        match self.changes.get(self.next) {
            Some(change) if change.time <= time => {
                self.changes.partition_point(|change| change.time <= time)
            }
            _ => self.next,
        }
    }

    fn go(&mut self, count: usize) -> Difference {
        let changes = Arc::clone(&self.changes);
        let mut told = Difference::default();
        for (index, change) in changes.iter().enumerate().take(count).skip(self.next) {
            self.next = index + 1;
            match &change.action {
                Action::Put { address, bytes } => {
                    let end = address.saturating_add(bytes.len() as u64);
                    let bytes = bytes.clone();
                    let section = Section {
                        start: *address,
                        end,
                        bytes,
                    };
                    told.come.extend(self.sections.gaps(*address, end));
                    told.gone.extend(self.sections.overlay(section));
                }
                Action::Remove { start, end } => {
                    told.gone.extend(self.sections.remove(*start, *end));
                }
                Action::Clear => {
                    told.died |= !self.sections.is_empty();
                    self.sections = first_sections(&changes, index + 1);
                    told.born |= !self.sections.is_empty();
                }
            }
        }
        told
    }

    /// The time of the next change, if any: until then `advance` does nothing.
    pub fn next_change(&self) -> Option<u64> {
        self.changes.get(self.next).map(|change| change.time)
    }

    /// Copies up to 16 bytes from `address` on, across sections and known pages that touch, and returns how many
    /// there are; 0 means that nothing is known at `address`. The rest of `out` is left as it was.
    pub fn read(&self, address: u64, out: &mut [u8; 16]) -> usize {
        self.read_into(address, out)
    }

    /// As `read`, for any number of bytes.
    pub fn read_into(&self, address: u64, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() {
            let Some(at) = address.checked_add(done as u64) else {
                break;
            };
            let count = self.read_part(at, out.get_mut(done..).unwrap_or(&mut []));
            if count == 0 {
                break;
            }
            done += count;
        }
        done
    }

    /// What one section or page has.
    fn read_part(&self, address: u64, out: &mut [u8]) -> usize {
        let copy = |bytes: &[u8], out: &mut [u8]| {
            let count = bytes.len().min(out.len());
            for (to, from) in out.iter_mut().zip(bytes) {
                *to = *from;
            }
            count
        };
        if let Some(bytes) = self.section_bytes(address) {
            return copy(bytes, out);
        }
        let Some(page) = self.pager.as_ref().and_then(|pager| pager.known(address)) else {
            return 0;
        };
        // a section within the page goes before it
        let until = self.sections.after(address).unwrap_or(u64::MAX);
        let room = usize::try_from(until - address).unwrap_or(usize::MAX);
        let bytes = page.as_slice();
        copy(bytes.get(..room).unwrap_or(bytes), out)
    }

    /// Whether both have the very same bytes at the same addresses, without comparing one, and nobody is asked for
    /// more.
    pub fn has_bytes_of(&self, other: &View) -> bool {
        !self.asks() && !other.asks() && self.sections.are(&other.sections)
    }

    /// Whether there is somebody to be asked for pages.
    pub fn asks(&self) -> bool {
        self.pager.is_some()
    }

    /// Nothing is known at `address`: whoever has the pages is asked, if anybody has. Whether there is something now.
    pub fn ask(&self, address: u64) -> bool {
        self.pager.as_ref().is_some_and(|pager| pager.ask(address))
    }

    /// The bytes from `address` to the end of its section; more may follow in a section that
    /// touches it.
    pub fn section_bytes(&self, address: u64) -> Option<&[u8]> {
        let section = self.sections.from(address).first()?;
        section
            .bytes
            .as_slice()
            .get((address - section.start) as usize..)
    }
}

/// What can be read when a life begins whose first change is `changes[first]`: for every address
/// the first bytes that are put there, unless something was removed there before.
fn first_sections(changes: &[Arc<Change>], first: usize) -> Sections {
    let mut taken = Ranges::default();
    let mut sections = Vec::new();
    for change in changes.iter().skip(first) {
        match &change.action {
            Action::Put { address, bytes } => {
                let end = address.saturating_add(bytes.len() as u64);
                let bytes = bytes.clone();
                let whole = Section {
                    start: *address,
                    end,
                    bytes,
                };
                let parts = taken.add(whole.start, whole.end);
                sections.extend(parts.into_iter().map(|(from, to)| whole.part(from, to)));
            }
            Action::Remove { start, end } => drop(taken.add(*start, *end)),
            Action::Clear => break,
        }
    }
    Sections::new(sections)
}
