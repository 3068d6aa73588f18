//! One address space: its executable mappings, the instructions decoded in it, and the bytes that were reported
//! because no file has them.

use std::collections::hash_map::DefaultHasher;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use libc::pid_t;
use rtit_x86::{Class, Instruction, Mode, MAX_LENGTH};

use crate::event::Mapping;
use crate::{maps, memory, procfs};

const PAGE: u64 = 4096;
/// What is sent of one mapping, at most. Of larger ones the pages that run are, as of memory without a file.
const LARGEST: u64 = 64 << 20;

/// Something that the stream must say before an instruction can rely on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// With its contents if they cannot be read from the file later.
    Mapped(Mapping, Option<Contents>),
    /// Bytes at an address.
    Code(u64, Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Contents {
    /// The beginning of the file, as far as that is in memory.
    pub(crate) head: Vec<u8>,
    /// All that is mapped.
    pub(crate) code: Vec<u8>,
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

/// A mapping of a file whose bytes the reader has, except where others were reported.
#[derive(Clone)]
struct OfFile {
    mapping: Mapping,
    /// Hashes of the pages from `first` on, if contents were sent. None: what the file has.
    sent: Option<(u64, Rc<[u64]>)>,
}

impl OfFile {
    /// Whether the reader has these bytes at the start of a page.
    fn has(&self, page: u64, bytes: &[u8]) -> bool {
        if let Some((first, hashes)) = &self.sent {
            let index = ((page - first) / PAGE) as usize;
            return hashes.get(index) == Some(&hash(bytes));
        }
        let mut there = vec![0u8; bytes.len()];
        let offset = self.mapping.offset + (page - self.mapping.start);
        self.mapping.is_settled() && self.mapping.read_file(offset, &mut there) && there == bytes
    }

    /// What is left of it without the addresses from `start` to `end`.
    fn without(self, start: u64, end: u64) -> impl Iterator<Item = OfFile> {
        let Mapping {
            start: low,
            end: high,
            offset,
            ..
        } = self.mapping;
        [(low, high.min(start)), (low.max(end), high)]
            .into_iter()
            .filter(|(from, to)| from < to)
            .map(move |(from, to)| OfFile {
                mapping: Mapping {
                    start: from,
                    end: to,
                    offset: offset + (from - low),
                    ..self.mapping.clone()
                },
                sent: self.sent.clone(),
            })
    }
}

#[derive(Default)]
pub(crate) struct Space {
    /// In address order.
    mappings: Vec<Mapping>,
    /// 64-bit instructions in stable mappings.
    decoded: ByAddress<Instruction>,
    /// Pages whose bytes were reported, as they were reported.
    reported: ByAddress<Rc<[u8]>>,
    /// The files that the reader has there, none over another.
    files: Vec<OfFile>,
    /// The starts of mappings whose bytes may change without a system call of the program.
    unsettled: Vec<u64>,
}

impl Space {
    /// The space of a process that was forked off.
    pub(crate) fn fork(&self) -> Space {
        Space {
            mappings: self.mappings.clone(),
            decoded: ByAddress::default(),
            reported: self.reported.clone(),
            files: self.files.clone(),
            unsettled: self.unsettled.clone(),
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
        let Some(mut mappings) = maps::executable(tid) else {
            return Vec::new();
        };
        // The file of a mapping that stands may lose its name.
        for mapping in &mut mappings {
            if let Some(old) = self.mappings.iter().find(|old| mapping.is_deleted(old)) {
                mapping.path.clone_from(&old.path);
            }
        }
        let old = std::mem::replace(&mut self.mappings, mappings);
        let is_in = |list: &[Mapping], mapping: &Mapping| list.contains(mapping);
        let gone: Vec<Mapping> = old
            .iter()
            .filter(|m| !is_in(&self.mappings, m))
            .cloned()
            .collect();
        let new: Vec<Mapping> = self
            .mappings
            .iter()
            .filter(|m| !is_in(&old, m))
            .cloned()
            .collect();
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
        self.unsettled.retain(|&start| !stale(start, 1));
        let ours = maps::shares_our_paths(tid);
        let mut changes = Vec::new();
        for mapping in new {
            self.appeared(tid, mapping, ours, &mut changes);
        }
        changes
    }

    /// A mapping is new; `ours`: paths mean the same files to us.
    fn appeared(&mut self, tid: pid_t, mapping: Mapping, ours: bool, changes: &mut Vec<Change>) {
        if mapping.is_vdso() {
            // At most a few pages; the bound keeps a lie in /proc from costing memory.
            let code = read(
                tid,
                mapping.start,
                mapping.end.min(mapping.start + 64 * PAGE),
            );
            let start = mapping.start;
            changes.push(Change::Mapped(mapping, None));
            changes.push(Change::Code(start, code));
        } else if !mapping.is_stable() {
            if !self.still_shows_files(tid, &mapping) {
                self.forget_files(mapping.start, mapping.end);
                changes.push(Change::Mapped(mapping, None));
            }
        } else if ours && mapping.is_settled() {
            let (start, end) = (mapping.start, mapping.end);
            self.forget_files(start, end);
            self.files.push(OfFile {
                mapping: mapping.clone(),
                sent: None,
            });
            changes.push(Change::Mapped(mapping, None));
            for page in procfs::modified_pages(tid, start, end) {
                let bytes = read(tid, page, page + PAGE);
                if bytes.len() == PAGE as usize {
                    changes.push(Change::Code(page, bytes));
                    self.forget_files(page, page + PAGE);
                }
            }
        } else {
            self.unsettled.push(mapping.start);
            if !self.was_sent(&mapping) {
                self.forget_files(mapping.start, mapping.end);
                changes.push(self.sent(tid, mapping));
            }
        }
    }

    /// A mapping with its contents: who reads this may find no such file, or another.
    fn sent(&mut self, tid: pid_t, mapping: Mapping) -> Change {
        if mapping.end - mapping.start > LARGEST {
            let path = b"//anon".to_vec();
            return Change::Mapped(Mapping { path, ..mapping }, None);
        }
        let code = read(tid, mapping.start, mapping.end);
        let hashes = code.chunks(PAGE as usize).map(hash).collect();
        self.files.push(OfFile {
            mapping: mapping.clone(),
            sent: Some((mapping.start, hashes)),
        });
        let start = maps::start_of_file(tid, &mapping);
        let head = start.map_or_else(Vec::new, |start| read(tid, start, start + PAGE));
        Change::Mapped(mapping, Some(Contents { head, code }))
    }

    /// Whether it is a part of one that was sent.
    fn was_sent(&self, mapping: &Mapping) -> bool {
        let is_part = |whole: &Mapping| {
            whole.start <= mapping.start
                && mapping.end <= whole.end
                && mapping.offset == whole.offset + (mapping.start - whole.start)
                && (mapping.inode, &mapping.path) == (whole.inode, &whole.path)
        };
        self.files
            .iter()
            .any(|file| file.sent.is_some() && is_part(&file.mapping))
    }

    /// Whether memory without a file has the bytes of the files that were mapped there before: a program moved its code
    /// to other pages. Then the reader goes by the files.
    fn still_shows_files(&self, tid: pid_t, mapping: &Mapping) -> bool {
        let pages = (mapping.start..mapping.end).step_by(PAGE as usize);
        mapping.inode == 0
            && mapping.end - mapping.start <= LARGEST
            && pages
                .into_iter()
                .all(|page| self.reader_has(page, &read(tid, page, page + PAGE)))
    }

    fn reader_has(&self, page: u64, bytes: &[u8]) -> bool {
        let there = self
            .files
            .iter()
            .find(|file| file.mapping.overlaps(page, page + PAGE));
        there.is_some_and(|file| file.has(page, bytes))
    }

    /// The reader has something else there.
    fn forget_files(&mut self, start: u64, end: u64) {
        let files = std::mem::take(&mut self.files);
        self.files = files
            .into_iter()
            .flat_map(|file| file.without(start, end))
            .collect();
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
        if !(mapping.is_stable() && inside && !self.unsettled.contains(&mapping.start)) {
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
                if known.is_some() || !self.reader_has(page, &whole) {
                    changes.extend(difference(page, known.map(Rc::as_ref), &whole));
                    self.forget_files(page, page + PAGE);
                }
                self.reported.insert(page, whole.into());
            }
            done += count;
        }
    }
}

/// What is in memory from `start` on, up to `end` or what cannot be read.
fn read(tid: pid_t, start: u64, end: u64) -> Vec<u8> {
    let mut bytes = vec![0u8; (end - start) as usize];
    let count = memory::read(tid, start, &mut bytes);
    bytes.truncate(count);
    bytes
}

fn hash(page: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(page);
    hasher.finish()
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
            .any(|c| matches!(c, Change::Mapped(m, _) if m.is_vdso())));
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
