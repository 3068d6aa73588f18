//! A space at a time, which only moves forward.
//!
//! Rule of early visibility. A program runs in a space from one `clear` to the next. Where nothing
//! was mapped before in the same program, bytes can be read from its start, before their own time:
//! no other bytes can be meant, the time estimates of a decoder can lag, and a space that only grows
//! then needs no invalidation. Everything else (replacing, removing, mapping again after removal)
//! takes effect exactly at its time.

use std::sync::Arc;

use crate::pager::Pager;
use crate::sections::{DisjointRanges, MemorySection, MemorySections};
use crate::space::{ChangeAction, CodeChange};

/// The code that `SpaceView::advance_to_time` changed, which a decoder must invalidate. Ranges are half-open and
/// can touch or overlap; their bytes differ, are no longer readable, or were not readable before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedCode {
    None,
    Ranges(Vec<(u64, u64)>),
    All,
}

/// The effect of some changes.
#[derive(Default)]
pub(crate) struct ViewDifference {
    /// Ranges that were readable and differ or are no longer readable.
    lost: Vec<(u64, u64)>,
    /// Ranges that were not readable before.
    added: Vec<(u64, u64)>,
    /// A program ended in which something was readable.
    has_end: bool,
    /// A program began in which something is readable.
    has_start: bool,
}

impl ViewDifference {
    /// Whether readable bytes changed or disappeared.
    pub(crate) fn makes_bytes_unreadable(&self) -> bool {
        self.has_end || !self.lost.is_empty()
    }

    fn into_changed(mut self) -> ChangedCode {
        if self.has_end || self.has_start {
            return ChangedCode::All;
        }
        self.lost.extend(self.added);
        if self.lost.is_empty() {
            ChangedCode::None
        } else {
            ChangedCode::Ranges(self.lost)
        }
    }
}

#[derive(Clone, Debug)]
pub struct SpaceView {
    changes: Arc<Vec<Arc<CodeChange>>>,
    /// Index of the first change whose time has not come.
    next: usize,
    sections: MemorySections,
    pager: Option<Arc<Pager>>,
}

impl SpaceView {
    pub(crate) fn new(changes: Arc<Vec<Arc<CodeChange>>>, pager: Option<Arc<Pager>>) -> SpaceView {
        let sections = first_sections(&changes, 0);
        SpaceView {
            changes,
            next: 0,
            sections,
            pager,
        }
    }

    /// Moves to `time`: every change with a time up to and including it is in effect. A time before
    /// the last one changes nothing.
    pub fn advance_to_time(&mut self, time: u64) -> ChangedCode {
        self.advance_to_change_count(self.change_count_at_time(time))
    }

    /// Returns the number of changes that are in effect.
    pub fn applied_change_count(&self) -> usize {
        self.next
    }

    /// Applies changes until `count` of them are in effect. Returns what `advance_to_time` returns.
    pub fn advance_to_change_count(&mut self, count: usize) -> ChangedCode {
        if count <= self.next {
            return ChangedCode::None;
        }
        self.apply_changes_up_to(count).into_changed()
    }

    /// Applies the changes up to `time`.
    pub(crate) fn apply_changes_until(&mut self, time: u64) -> ViewDifference {
        self.apply_changes_up_to(self.change_count_at_time(time))
    }

    /// Returns the number of changes that are in effect at `time`.
    fn change_count_at_time(&self, time: u64) -> usize {
        match self.changes.get(self.next) {
            Some(change) if change.time <= time => {
                self.changes.partition_point(|change| change.time <= time)
            }
            _ => self.next,
        }
    }

    /// Applies changes until so many are in effect.
    fn apply_changes_up_to(&mut self, count: usize) -> ViewDifference {
        let changes = Arc::clone(&self.changes);
        let mut difference = ViewDifference::default();
        for (index, change) in changes.iter().enumerate().take(count).skip(self.next) {
            self.next = index + 1;
            match &change.action {
                ChangeAction::Map { address, bytes } => {
                    let end = address.saturating_add(bytes.len() as u64);
                    let bytes = bytes.clone();
                    let section = MemorySection {
                        start: *address,
                        end,
                        bytes,
                    };
                    difference
                        .added
                        .extend(self.sections.gaps_in_range(*address, end));
                    difference
                        .lost
                        .extend(self.sections.overlay_section(section));
                }
                ChangeAction::Remove { start, end } => {
                    difference
                        .lost
                        .extend(self.sections.remove_range(*start, *end));
                }
                ChangeAction::Clear => {
                    difference.has_end |= !self.sections.is_empty();
                    self.sections = first_sections(&changes, index + 1);
                    difference.has_start |= !self.sections.is_empty();
                }
            }
        }
        difference
    }

    /// Returns the time of the next change: until then `advance_to_time` does nothing.
    pub fn next_change(&self) -> Option<u64> {
        self.changes.get(self.next).map(|change| change.time)
    }

    /// Copies up to 16 bytes from `address` on, across sections and cached pages that touch. Returns the number of
    /// bytes; 0 if the byte at `address` is unknown. The rest of `out` is unchanged.
    pub fn read_instruction_bytes(&self, address: u64, out: &mut [u8; 16]) -> usize {
        self.read_bytes_into(address, out)
    }

    /// As `read_instruction_bytes`, for any number of bytes.
    pub fn read_bytes_into(&self, address: u64, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() {
            let Some(at) = address.checked_add(done as u64) else {
                break;
            };
            let count = self.read_one_section_part(at, out.get_mut(done..).unwrap_or(&mut []));
            if count == 0 {
                break;
            }
            done += count;
        }
        done
    }

    /// Copies bytes of one section or page. Returns the number of bytes.
    fn read_one_section_part(&self, address: u64, out: &mut [u8]) -> usize {
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
        let Some(page) = self
            .pager
            .as_ref()
            .and_then(|pager| pager.cached_bytes_from(address))
        else {
            return 0;
        };
        // a section in the page replaces a part of it
        let until = self
            .sections
            .next_section_start(address)
            .unwrap_or(u64::MAX);
        let room = usize::try_from(until - address).unwrap_or(usize::MAX);
        let bytes = page.as_slice();
        copy(bytes.get(..room).unwrap_or(bytes), out)
    }

    /// Whether both have the same parts of the same allocations at the same addresses, and no pager.
    pub fn has_same_bytes_as(&self, other: &SpaceView) -> bool {
        !self.has_pager() && !other.has_pager() && self.sections.are_same_parts_as(&other.sections)
    }

    /// Whether bytes can also come from a pager.
    pub fn has_pager(&self) -> bool {
        self.pager.is_some()
    }

    /// Requests the page of an unknown address from the pager. Returns whether the byte is known now.
    pub fn request_page(&self, address: u64) -> bool {
        self.pager
            .as_ref()
            .is_some_and(|pager| pager.request_page_of(address))
    }

    /// The bytes from `address` to the end of its section; more may follow in a section that
    /// touches it.
    pub fn section_bytes(&self, address: u64) -> Option<&[u8]> {
        let section = self.sections.sections_from_address(address).first()?;
        section
            .bytes
            .as_slice()
            .get((address - section.start) as usize..)
    }
}

/// Returns what is readable when a program starts whose first change is `changes[first]`: for every
/// address the first bytes that are mapped there, unless the address was removed before.
fn first_sections(changes: &[Arc<CodeChange>], first: usize) -> MemorySections {
    let mut taken = DisjointRanges::default();
    let mut sections = Vec::new();
    for change in changes.iter().skip(first) {
        match &change.action {
            ChangeAction::Map { address, bytes } => {
                let end = address.saturating_add(bytes.len() as u64);
                let bytes = bytes.clone();
                let whole = MemorySection {
                    start: *address,
                    end,
                    bytes,
                };
                let parts = taken.add_range(whole.start, whole.end);
                sections.extend(
                    parts
                        .into_iter()
                        .map(|(from, to)| whole.clamp_to_range(from, to)),
                );
            }
            ChangeAction::Remove { start, end } => drop(taken.add_range(*start, *end)),
            ChangeAction::Clear => break,
        }
    }
    MemorySections::new(sections)
}
