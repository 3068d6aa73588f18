//! What a decoder will know of the code of this process, and what has to be reported to it.
//!
//! All that matters passes through here when QEMU translates it, before it runs. Code bytes are compared with what the
//! decoder has: the mapped file, or bytes that were sent before. A file mapping is reported when code of it is first
//! translated, with all its bytes if the file may change or is another to the recorder. So neither protections nor who
//! wrote what, when, have to be known.

use std::collections::hash_map::DefaultHasher;
use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;

use crate::interface::memory;
use crate::shared::maps::{self, Mapped, Recorder};

const PAGE: u64 = 4096;
/// What is sent of one mapping, at most. Of larger ones the pages that run are, as of memory without a file.
const LARGEST: u64 = 64 << 20;

/// What the recording has to say before the code can run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// With its contents if they cannot be read from the file later.
    Mapped(Mapped, Option<Contents>),
    Code(u64, Vec<u8>),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The beginning of the file, as far as that is in memory.
    pub(crate) head: Vec<u8>,
    /// All that is mapped.
    pub(crate) code: Vec<u8>,
}

/// A mapping that the decoder has the bytes of.
#[derive(Clone, Debug)]
struct ReportedMapping {
    mapped: Mapped,
    /// Hashes of the pages from `first` on, if contents were sent. None: what the file has.
    sent: Option<(u64, Arc<[u64]>)>,
}

impl ReportedMapping {
    /// What the decoder has of a page.
    fn bytes(&self, page: u64, into: &mut [u8]) -> usize {
        let Some((first, hashes)) = &self.sent else {
            return self.mapped.bytes(page, into);
        };
        let count = memory::read(page, into);
        let sent = hashes.get(((page - first) / PAGE) as usize);
        if sent == Some(&hash(&into[..count])) {
            count
        } else {
            0
        }
    }

    /// What is left of it without the addresses from `from` to `to`.
    fn without(self, from: u64, to: u64) -> impl Iterator<Item = ReportedMapping> {
        let after = self.clone().within(to, u64::MAX);
        self.within(0, from).into_iter().chain(after)
    }

    /// The part of it from `from` to `to`.
    fn within(self, from: u64, to: u64) -> Option<ReportedMapping> {
        let Mapped {
            start, end, offset, ..
        } = self.mapped;
        let (from, to) = (from.max(start), to.min(end));
        let mapped = Mapped {
            start: from,
            end: to,
            offset: offset.wrapping_add(from.wrapping_sub(start)),
            ..self.mapped
        };
        (from < to).then_some(ReportedMapping { mapped, ..self })
    }
}

fn at(reported: &[ReportedMapping], address: u64) -> Option<&ReportedMapping> {
    let has = |mapped: &Mapped| (mapped.start..mapped.end).contains(&address);
    reported.iter().find(|reported| has(&reported.mapped))
}

fn hash(page: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(page);
    hasher.finish()
}

/// Bytes of a page that the decoder has; None where it has none.
type Known = Box<[Option<u8>]>;

#[derive(Default)]
pub(crate) struct Space {
    recorder: Recorder,
    reported: Vec<ReportedMapping>,
    /// What was reported of mappings that are gone: the decoder goes by it where nothing else is reported.
    stale: Vec<ReportedMapping>,
    pages: HashMap<u64, Known>,
}

impl Space {
    pub(crate) fn new(recorder: Recorder) -> Space {
        Space {
            recorder,
            ..Space::default()
        }
    }

    /// Code at `address` is about to run for the first time: what has to be reported before.
    pub(crate) fn translated(&mut self, address: u64, code: &[u8]) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut rest = code;
        let mut at = address;
        while !rest.is_empty() {
            let page = at & !(PAGE - 1);
            let room = (page + PAGE - at) as usize;
            let (here, after) = rest.split_at(rest.len().min(room));
            self.check(page, (at - page) as usize, here, &mut changes);
            at = at.wrapping_add(here.len() as u64);
            rest = after;
        }
        changes
    }

    /// `translated` would give no changes.
    pub(crate) fn knows(&self, address: u64, code: &[u8]) -> bool {
        let mut known = None;
        (address..).zip(code).all(|(at, now)| {
            let page = at & !(PAGE - 1);
            if known.is_none_or(|(of, _)| of != page) {
                known = self.pages.get(&page).map(|bytes| (page, bytes));
            }
            known.is_some_and(|(of, bytes)| of == page && bytes[(at - page) as usize] == Some(*now))
        })
    }

    /// What was mapped there is gone.
    pub(crate) fn forget(&mut self, start: u64, size: u64) {
        let end = start.saturating_add(size);
        let (from, to) = (start & !(PAGE - 1), end);
        self.pages
            .retain(|&page, _| page + PAGE <= from || page >= to);
        for reported in std::mem::take(&mut self.reported) {
            self.stale.extend(reported.clone().within(from, to));
            self.reported.extend(reported.without(from, to));
        }
    }

    /// The mapping of a file that was reported for an address.
    pub(crate) fn mapped_at(&self, address: u64) -> Option<&Mapped> {
        at(&self.reported, address).map(|reported| &reported.mapped)
    }

    fn check(&mut self, page: u64, offset: usize, code: &[u8], changes: &mut Vec<Change>) {
        if !self.pages.contains_key(&page) {
            let known = self.first_look(page, changes);
            self.pages.insert(page, known);
        }
        let Some(known) = self.pages.get_mut(&page) else {
            return;
        };
        let same = known
            .iter()
            .skip(offset)
            .zip(code)
            .all(|(known, now)| *known == Some(*now));
        if same {
            return;
        }
        // The page as it is now, but the code as it was translated.
        let mut now = vec![0u8; PAGE as usize];
        let readable = memory::read(page, &mut now);
        if readable < now.len() {
            // Tell no more than what was translated.
            now.clear();
            now.resize(PAGE as usize, 0);
        }
        if let Some(place) = now.get_mut(offset..offset + code.len()) {
            place.copy_from_slice(code);
        }
        let all = if readable == now.len() {
            0..now.len()
        } else {
            offset..offset + code.len()
        };
        let differs = |index: &usize| known[*index] != Some(now[*index]);
        let (Some(first), Some(last)) = (all.clone().find(differs), all.rev().find(differs)) else {
            return;
        };
        for index in first..=last {
            known[index] = Some(now[index]);
        }
        changes.push(Change::Code(
            page + first as u64,
            now[first..=last].to_vec(),
        ));
    }

    /// What the decoder has of a page, once the mapping that it is in has been reported.
    fn first_look(&mut self, page: u64, changes: &mut Vec<Change>) -> Known {
        let mut known = vec![None; PAGE as usize].into_boxed_slice();
        if at(&self.reported, page).is_none() {
            if let Some(change) = self.look_up(page).and_then(|found| self.tell(found)) {
                changes.push(change);
            }
        }
        let mut bytes = [0u8; PAGE as usize];
        let mut count = 0;
        if let Some(reported) = at(&self.reported, page) {
            count = reported.bytes(page, &mut bytes);
        } else if let Some(reported) = at(&self.stale, page) {
            // A program that moves its code to other pages has the same there as before.
            let mut now = [0u8; PAGE as usize];
            count = reported.bytes(page, &mut bytes);
            let readable = memory::read(page, &mut now);
            if count == 0 || readable < count || now[..count] != bytes[..count] {
                count = 0;
                self.cover(page, page + PAGE);
                changes.push(Change::Mapped(
                    Mapped::without_file(page, page + PAGE),
                    None,
                ));
            }
        }
        for (into, byte) in known.iter_mut().zip(&bytes[..count]) {
            *into = Some(*byte);
        }
        known
    }

    /// Tells of a mapping, if the decoder will have its bytes.
    fn tell(&mut self, mapped: Mapped) -> Option<Change> {
        let size = mapped.end - mapped.start;
        let contents = if mapped.is_settled(&self.recorder) {
            None
        } else if size > LARGEST {
            return None;
        } else {
            let read = |start: u64, size: u64| {
                let mut bytes = vec![0; size as usize];
                let count = memory::read(start, &mut bytes);
                bytes.truncate(count);
                bytes
            };
            let start = maps::start_of_file(&mapped);
            Some(Contents {
                head: start.map_or_else(Vec::new, |start| read(start, PAGE)),
                code: read(mapped.start, size),
            })
        };
        let hashes = |contents: &Contents| contents.code.chunks(PAGE as usize).map(hash).collect();
        self.cover(mapped.start, mapped.end);
        self.reported.push(ReportedMapping {
            mapped: mapped.clone(),
            sent: contents.as_ref().map(|all| (mapped.start, hashes(all))),
        });
        Some(Change::Mapped(mapped, contents))
    }

    /// Something else is reported there.
    fn cover(&mut self, start: u64, end: u64) {
        let stale = std::mem::take(&mut self.stale);
        let rest = stale
            .into_iter()
            .flat_map(|reported| reported.without(start, end));
        self.stale = rest.collect();
    }

    /// The private mapping of a file that a page belongs to, less what has been reported of others.
    fn look_up(&self, page: u64) -> Option<Mapped> {
        let mut found = maps::look_up(page)?;
        for ReportedMapping { mapped: other, .. } in &self.reported {
            if other.end <= page && other.end > found.start {
                found.offset += other.end - found.start;
                found.start = other.end;
            }
            if other.start > page && other.start < found.end {
                found.end = other.start;
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> u64 {
        here as fn() -> u64 as usize as u64
    }

    /// Of a recorder that can read our file later.
    fn space() -> Space {
        Space::new(Recorder::of_now())
    }

    #[test]
    fn code_of_a_file_needs_only_its_mapping() {
        let mut code = [0u8; 16];
        assert_eq!(memory::read(here(), &mut code), 16);
        let mut space = space();
        let changes = space.translated(here(), &code);
        let [Change::Mapped(mapped, None)] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert!((mapped.start..mapped.end).contains(&here()));
        assert!(space.knows(here(), &code));
        assert_eq!(space.translated(here(), &code), []);
    }

    #[test]
    fn what_the_recorder_cannot_read_later_is_sent_whole() {
        let mut code = [0u8; 16];
        memory::read(here(), &mut code);
        let mut space = Space::default();
        let changes = space.translated(here(), &code);
        let [Change::Mapped(mapped, Some(contents))] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert_eq!(contents.head[..4], *b"\x7fELF");
        assert_eq!(contents.code.len() as u64, mapped.end - mapped.start);
        assert_eq!(
            contents.code[(here() - mapped.start) as usize..][..16],
            code
        );
        assert!(space.knows(here(), &code));
    }

    #[test]
    fn what_is_known_is_what_needs_not_be_told() {
        let mut code = [0u8; 16];
        memory::read(here(), &mut code);
        let mut space = space();
        assert!(!space.knows(here(), &code));
        space.translated(here(), &code);
        assert!(space.knows(here() + 4, &code[4..]));
        code[15] ^= 0xff;
        assert!(!space.knows(here(), &code));
        assert!(!space.knows((here() & !(PAGE - 1)) + PAGE - 1, &[0; 2]));
    }

    #[test]
    fn code_that_is_not_the_files_is_told() {
        let mut code = [0u8; 16];
        memory::read(here(), &mut code);
        let mut space = space();
        space.translated(here(), &code);
        code[3] ^= 0xff;
        let reported = space.translated(here(), &code);
        assert_eq!(reported, [Change::Code(here() + 3, vec![code[3]])]);
        space.forget(here(), 1);
        assert_eq!(space.translated(here(), &code).len(), 2);
    }

    #[test]
    fn a_hole_splits_what_was_told() {
        let mapped = Mapped {
            start: 0x1000,
            end: 0x5000,
            offset: 0x2000,
            major: 1,
            minor: 2,
            inode: 3,
            path: b"/x".to_vec(),
        };
        let mut space = Space {
            reported: vec![ReportedMapping { mapped, sent: None }],
            ..Space::default()
        };
        space.forget(0x2000, 0x1000);
        let parts: Vec<_> = space
            .reported
            .iter()
            .map(|ReportedMapping { mapped: m, .. }| (m.start, m.end, m.offset))
            .collect();
        assert_eq!(parts, [(0x1000, 0x2000, 0x2000), (0x3000, 0x5000, 0x4000)]);
    }
}
