//! What a decoder will know of the code of this process, and what it has to be told.
//!
//! All that matters passes through here when QEMU translates it, before it runs. Code bytes are compared with what the
//! decoder has: the mapped file, or bytes that were sent before. A file mapping is told when code of it is first
//! translated. So neither protections nor who wrote what, when, have to be known.

use std::collections::HashMap;

use crate::interface::memory;
use crate::shared::maps::{self, Mapped};

const PAGE: u64 = 4096;

/// What the recording has to say before the code can run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Mapped(Mapped),
    Code(u64, Vec<u8>),
}

/// Bytes of a page that the decoder has; None where it has none.
type Known = Box<[Option<u8>]>;

#[derive(Default)]
pub(crate) struct Space {
    told: Vec<Mapped>,
    pages: HashMap<u64, Known>,
}

impl Space {
    /// Code at `address` is about to run for the first time: what has to be told before.
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
        let mut told = Vec::new();
        for mapped in self.told.drain(..) {
            if mapped.end <= from || mapped.start >= to {
                told.push(mapped);
                continue;
            }
            if mapped.start < from {
                told.push(Mapped {
                    end: from,
                    ..mapped.clone()
                });
            }
            if mapped.end > to {
                told.push(Mapped {
                    start: to,
                    offset: mapped.offset + (to - mapped.start),
                    ..mapped
                });
            }
        }
        self.told = told;
    }

    /// The mapping of a file that was told for an address.
    pub(crate) fn mapped_at(&self, address: u64) -> Option<&Mapped> {
        self.told
            .iter()
            .find(|mapped| (mapped.start..mapped.end).contains(&address))
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

    /// What the decoder has of a page, once the mapping that it is in has been told.
    fn first_look(&mut self, page: u64, changes: &mut Vec<Change>) -> Known {
        let mut known = vec![None; PAGE as usize].into_boxed_slice();
        let find = |told: &[Mapped]| {
            told.iter()
                .find(|m| (m.start..m.end).contains(&page))
                .cloned()
        };
        let mapped = find(&self.told).or_else(|| {
            let found = self.look_up(page)?;
            self.told.push(found.clone());
            changes.push(Change::Mapped(found.clone()));
            Some(found)
        });
        if let Some(mapped) = mapped {
            let mut bytes = [0u8; PAGE as usize];
            let count = mapped.bytes(page, &mut bytes);
            for (into, byte) in known.iter_mut().zip(&bytes[..count]) {
                *into = Some(*byte);
            }
        }
        known
    }

    /// The private mapping of a file that a page belongs to, less what has been told of others.
    fn look_up(&self, page: u64) -> Option<Mapped> {
        let mut found = maps::look_up(page)?;
        for other in &self.told {
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

    #[test]
    fn code_of_a_file_needs_only_its_mapping() {
        let mut code = [0u8; 16];
        assert_eq!(memory::read(here(), &mut code), 16);
        let mut space = Space::default();
        let changes = space.translated(here(), &code);
        let [Change::Mapped(mapped)] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert!((mapped.start..mapped.end).contains(&here()));
        assert!(space.knows(here(), &code));
        assert_eq!(space.translated(here(), &code), []);
    }

    #[test]
    fn what_is_known_is_what_needs_not_be_told() {
        let mut code = [0u8; 16];
        memory::read(here(), &mut code);
        let mut space = Space::default();
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
        let mut space = Space::default();
        space.translated(here(), &code);
        code[3] ^= 0xff;
        let told = space.translated(here(), &code);
        assert_eq!(told, [Change::Code(here() + 3, vec![code[3]])]);
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
            told: vec![mapped],
            ..Space::default()
        };
        space.forget(0x2000, 0x1000);
        let parts: Vec<_> = space
            .told
            .iter()
            .map(|m| (m.start, m.end, m.offset))
            .collect();
        assert_eq!(parts, [(0x1000, 0x2000, 0x2000), (0x3000, 0x5000, 0x4000)]);
    }
}
