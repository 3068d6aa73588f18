//! One address space: its executable mappings, the instructions decoded in it, and the bytes that were reported
//! because no file has them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use libc::pid_t;
use rtit_x86::{Class, Instruction, Mode, MAX_LENGTH};

use crate::event::Mapping;
use crate::{maps, memory, procfs};

const PAGE: u64 = 4096;

/// Something that the stream must say before an instruction can rely on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Mapped(Mapping),
    /// Bytes at an address.
    Code(u64, Vec<u8>),
}

/// What is at an address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fetched {
    /// None: no instruction, or no readable memory.
    pub(crate) instruction: Option<Instruction>,
    /// The vector of INT n, INT3, INT1.
    pub(crate) vector: u8,
    /// The process does not let us look at its memory.
    pub(crate) hidden: bool,
}

/// Instruction addresses are spread well by one multiplication.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
    }
}

type ByAddress<T> = HashMap<u64, T, BuildHasherDefault<AddressHasher>>;

#[derive(Default)]
pub(crate) struct Space {
    /// In address order.
    mappings: Vec<Mapping>,
    /// 64-bit instructions in stable mappings.
    decoded: ByAddress<Instruction>,
    /// Pages whose bytes were reported, as they were reported.
    reported: ByAddress<Rc<[u8]>>,
}

impl Space {
    /// The space of a process that was forked off.
    pub(crate) fn fork(&self) -> Space {
        Space {
            mappings: self.mappings.clone(),
            decoded: ByAddress::default(),
            reported: self.reported.clone(),
        }
    }

    /// Whether code was or is between the addresses, so that a change of the mappings there matters.
    pub(crate) fn has_code(&self, start: u64, end: u64) -> bool {
        self.mappings
            .iter()
            .any(|mapping| mapping.overlaps(start, end))
    }

    /// Where the byte at `offset` of a file is.
    pub(crate) fn address_of(&self, path: &[u8], offset: u64) -> Option<u64> {
        let shows = |m: &&Mapping| {
            m.path == path && (m.offset..m.offset + (m.end - m.start)).contains(&offset)
        };
        let mapping = self.mappings.iter().find(shows)?;
        Some(mapping.start + (offset - mapping.offset))
    }

    fn mapping_at(&self, address: u64) -> Option<&Mapping> {
        let index = self
            .mappings
            .partition_point(|mapping| mapping.end <= address);
        self.mappings
            .get(index)
            .filter(|mapping| mapping.start <= address)
    }

    /// Reads the mappings of `tid`'s process anew and says what appeared or changed.
    pub(crate) fn refresh(&mut self, tid: pid_t) -> Vec<Change> {
        let Some(mappings) = maps::executable(tid) else {
            return Vec::new();
        };
        let old = std::mem::replace(&mut self.mappings, mappings);
        let gone: Vec<&Mapping> = old.iter().filter(|m| !self.mappings.contains(m)).collect();
        let new: Vec<&Mapping> = self.mappings.iter().filter(|m| !old.contains(m)).collect();
        if gone.is_empty() && new.is_empty() {
            return Vec::new();
        }
        // What was known about these addresses says nothing any more.
        let stale = |address: u64, length: u64| {
            gone.iter()
                .chain(&new)
                .any(|m| m.overlaps(address, address + length))
        };
        self.decoded
            .retain(|&ip, instruction| !stale(ip, u64::from(instruction.length)));
        self.reported.retain(|&page, _| !stale(page, PAGE));
        let mut changes = Vec::new();
        for mapping in new {
            changes.push(Change::Mapped(mapping.clone()));
            if mapping.is_vdso() {
                // At most a few pages; the bound keeps a lie in /proc from costing memory.
                let mut bytes = vec![0u8; (mapping.end - mapping.start).min(64 * PAGE) as usize];
                let count = memory::read(tid, mapping.start, &mut bytes);
                bytes.truncate(count);
                changes.push(Change::Code(mapping.start, bytes));
            } else if mapping.is_stable() {
                for page in procfs::modified_pages(tid, mapping.start, mapping.end) {
                    let mut bytes = vec![0u8; PAGE as usize];
                    if memory::read(tid, page, &mut bytes) == bytes.len() {
                        changes.push(Change::Code(page, bytes));
                    }
                }
            }
        }
        changes
    }

    /// The instruction that `tid` executes next at `ip`, and what must be reported before it does.
    pub(crate) fn fetch(
        &mut self,
        tid: pid_t,
        ip: u64,
        mode: Mode,
        changes: &mut Vec<Change>,
    ) -> Fetched {
        if mode == Mode::Bits64 {
            if let Some(&instruction) = self.decoded.get(&ip) {
                return Fetched {
                    instruction: Some(instruction),
                    ..Fetched::default()
                };
            }
        }
        if self.mapping_at(ip).is_none() {
            // The stack grew, or a process that shares the memory mapped code.
            changes.extend(self.refresh(tid));
        }
        let mut bytes = [0u8; MAX_LENGTH];
        let count = memory::read(tid, ip, &mut bytes);
        let bytes = &bytes[..count];
        let mapping = match self.mapping_at(ip) {
            Some(mapping) if !bytes.is_empty() => mapping,
            _ => {
                return Fetched {
                    hidden: procfs::is_hidden(tid),
                    ..Fetched::default()
                };
            }
        };
        let instruction = rtit_x86::decode(bytes, ip, mode).ok();
        let length = instruction.map_or(count, |instruction| usize::from(instruction.length));
        let bytes = bytes.get(..length).unwrap_or(bytes);
        let interrupts = instruction.is_some_and(|i| i.class == Class::SoftwareInterrupt);
        let inside = ip.saturating_add(length as u64) <= mapping.end;
        if !(mapping.is_stable() && inside) {
            self.report(tid, ip, bytes, changes);
        } else if let Some(instruction) = instruction {
            if mode == Mode::Bits64 && !interrupts {
                self.decoded.insert(ip, instruction);
            }
        }
        Fetched {
            instruction,
            vector: if interrupts { vector(bytes) } else { 0 },
            hidden: false,
        }
    }

    /// Reports the pages of `bytes` at `address` unless these bytes are known already.
    fn report(&mut self, tid: pid_t, address: u64, bytes: &[u8], changes: &mut Vec<Change>) {
        let mut done = 0;
        while done < bytes.len() {
            let at = address.wrapping_add(done as u64);
            let page = at & !(PAGE - 1);
            let offset = (at - page) as usize;
            let count = (bytes.len() - done).min(PAGE as usize - offset);
            let now = &bytes[done..done + count];
            let known = self.reported.get(&page);
            if known.and_then(|known| known.get(offset..offset + count)) != Some(now) {
                let mut whole = vec![0u8; PAGE as usize];
                let readable = memory::read(tid, page, &mut whole);
                whole.truncate(readable);
                if let Some(change) = difference(page, known.map(Rc::as_ref), &whole) {
                    changes.push(change);
                }
                self.reported.insert(page, whole.into());
            }
            done += count;
        }
    }
}

/// The part of a page that differs from what was reported.
fn difference(page: u64, known: Option<&[u8]>, now: &[u8]) -> Option<Change> {
    let known = known.unwrap_or_default();
    let differs = |index: &usize| known.get(*index) != now.get(*index);
    let first = (0..now.len()).find(differs)?;
    let last = (0..now.len()).rfind(differs)?;
    let bytes = now.get(first..=last)?.to_vec();
    Some(Change::Code(page + first as u64, bytes))
}

/// The vector of a software interrupt instruction: CD ib, CC, F1 or CE, perhaps after prefixes.
fn vector(bytes: &[u8]) -> u8 {
    match bytes {
        [.., 0xcd, vector] => *vector,
        [.., 0xcc] => 3,
        [.., 0xf1] => 1,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_in_a_page_is_reported() {
        let known = [1u8, 2, 3, 4, 5];
        assert_eq!(difference(0x1000, Some(&known), &known), None);
        assert_eq!(
            difference(0x1000, Some(&known), &[1, 9, 3, 8, 5]),
            Some(Change::Code(0x1001, vec![9, 3, 8]))
        );
        assert_eq!(
            difference(0x1000, None, &known),
            Some(Change::Code(0x1000, known.to_vec()))
        );
        assert_eq!(difference(0x1000, None, &[]), None);
    }

    #[test]
    fn vectors_of_software_interrupts() {
        assert_eq!(vector(&[0xcc]), 3);
        assert_eq!(vector(&[0xf1]), 1);
        assert_eq!(vector(&[0xcd, 0x80]), 0x80);
        assert_eq!(vector(&[0xcd, 0xcc]), 0xcc);
        assert_eq!(vector(&[0x48, 0xcd, 0x03]), 3);
    }

    #[test]
    fn our_own_code_is_fetched_once_and_found_again() {
        let ip = our_own_code_is_fetched_once_and_found_again as fn() as usize as u64;
        let tid = std::process::id() as pid_t;
        let mut space = Space::default();
        let mut changes = Vec::new();
        let first = space.fetch(tid, ip, Mode::Bits64, &mut changes);
        assert!(first.instruction.is_some());
        assert!(changes
            .iter()
            .any(|c| matches!(c, Change::Mapped(m) if m.is_vdso())));
        changes.clear();
        let again = space.fetch(tid, ip, Mode::Bits64, &mut changes);
        assert_eq!((again.instruction, changes.len()), (first.instruction, 0));
    }

    #[test]
    fn nothing_is_at_an_address_that_is_not_mapped() {
        let mut space = Space::default();
        let fetched = space.fetch(
            std::process::id() as pid_t,
            8,
            Mode::Bits64,
            &mut Vec::new(),
        );
        assert!(fetched.instruction.is_none() && !fetched.hidden);
    }
}
