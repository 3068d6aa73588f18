//! The code bytes that the decoder will have, and the reports that it needs.
//!
//! All code passes here when QEMU translates it, before it runs. Its bytes are compared with those that the decoder
//! has: from a mapped file, or sent before. A file mapping is reported when code in it is first translated, with all
//! its bytes if the file may change or is not the recorder's file of that name. So the plugin need not follow mprotect,
//! or writes to code.

use std::collections::hash_map::DefaultHasher;
use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;

use crate::interface::guest_memory;
use crate::shared::file_mappings::{self, FileMapping, RecorderView};

const PAGE: u64 = 4096;
/// The largest mapping of which all bytes are sent. Of a larger one, the pages that run are sent, as of memory without
/// a file.
const MAX_SENT_MAPPING: u64 = 64 << 20;

/// A report that must precede the execution of the code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CodeChange {
    /// With its contents if the recorder cannot read them from the file later.
    Mapped(FileMapping, Option<MappingContents>),
    Code(u64, Vec<u8>),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MappingContents {
    /// The first bytes of the file, if they are mapped.
    pub(crate) head: Vec<u8>,
    /// All mapped bytes.
    pub(crate) code: Vec<u8>,
}

/// A reported mapping.
#[derive(Clone, Debug)]
struct ReportedMapping {
    mapped: FileMapping,
    /// Hashes of the pages from the given address on, if contents were sent. None: the decoder reads the file.
    sent: Option<(u64, Arc<[u64]>)>,
}

impl ReportedMapping {
    /// Reads the decoder's bytes of a page and returns how many there are.
    fn bytes(&self, page: u64, into: &mut [u8]) -> usize {
        let Some((first, hashes)) = &self.sent else {
            return self.mapped.read_file(page, into);
        };
        let count = guest_memory::read_bytes(page, into);
        let sent = hashes.get(((page - first) / PAGE) as usize);
        if sent == Some(&hash_page(&into[..count])) {
            count
        } else {
            0
        }
    }

    /// Returns the parts of the mapping outside of the addresses.
    fn without(self, from: u64, to: u64) -> impl Iterator<Item = ReportedMapping> {
        let after = self.clone().within(to, u64::MAX);
        self.within(0, from).into_iter().chain(after)
    }

    /// Returns the part of the mapping between the addresses.
    fn within(self, from: u64, to: u64) -> Option<ReportedMapping> {
        let FileMapping {
            start, end, offset, ..
        } = self.mapped;
        let (from, to) = (from.max(start), to.min(end));
        let mapped = FileMapping {
            start: from,
            end: to,
            offset: offset.wrapping_add(from.wrapping_sub(start)),
            ..self.mapped
        };
        (from < to).then_some(ReportedMapping { mapped, ..self })
    }
}

fn mapping_containing(reported: &[ReportedMapping], address: u64) -> Option<&ReportedMapping> {
    let has = |mapped: &FileMapping| (mapped.start..mapped.end).contains(&address);
    reported.iter().find(|reported| has(&reported.mapped))
}

fn hash_page(page: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(page);
    hasher.finish()
}

/// The decoder's bytes of a page; None where it has none.
type KnownPage = Box<[Option<u8>]>;

#[derive(Default)]
pub(crate) struct ReportedCode {
    recorder: RecorderView,
    reported: Vec<ReportedMapping>,
    /// Reported mappings that have been unmapped. The decoder keeps using them until another report covers them.
    stale: Vec<ReportedMapping>,
    pages: HashMap<u64, KnownPage>,
}

impl ReportedCode {
    pub(crate) fn new(recorder: RecorderView) -> ReportedCode {
        ReportedCode {
            recorder,
            ..ReportedCode::default()
        }
    }

    /// Returns the reports that must precede the first execution of `code` at `address`.
    pub(crate) fn check_code(&mut self, address: u64, code: &[u8]) -> Vec<CodeChange> {
        let mut changes = Vec::new();
        let mut rest = code;
        let mut at = address;
        while !rest.is_empty() {
            let page = at & !(PAGE - 1);
            let room = (page + PAGE - at) as usize;
            let (here, after) = rest.split_at(rest.len().min(room));
            self.check_page(page, (at - page) as usize, here, &mut changes);
            at = at.wrapping_add(here.len() as u64);
            rest = after;
        }
        changes
    }

    /// Returns whether `check_code` would return no reports.
    pub(crate) fn knows_code(&self, address: u64, code: &[u8]) -> bool {
        let mut known = None;
        (address..).zip(code).all(|(at, now)| {
            let page = at & !(PAGE - 1);
            if known.is_none_or(|(of, _)| of != page) {
                known = self.pages.get(&page).map(|bytes| (page, bytes));
            }
            known.is_some_and(|(of, bytes)| of == page && bytes[(at - page) as usize] == Some(*now))
        })
    }

    /// Forgets the mappings in a range, which have been unmapped or replaced.
    pub(crate) fn forget_range(&mut self, start: u64, size: u64) {
        let end = start.saturating_add(size);
        let (from, to) = (start & !(PAGE - 1), end);
        self.pages
            .retain(|&page, _| page + PAGE <= from || page >= to);
        for reported in std::mem::take(&mut self.reported) {
            self.stale.extend(reported.clone().within(from, to));
            self.reported.extend(reported.without(from, to));
        }
    }

    /// Returns the reported mapping of a file at an address.
    pub(crate) fn mapping_at(&self, address: u64) -> Option<&FileMapping> {
        mapping_containing(&self.reported, address).map(|reported| &reported.mapped)
    }

    fn check_page(&mut self, page: u64, offset: usize, code: &[u8], changes: &mut Vec<CodeChange>) {
        if !self.pages.contains_key(&page) {
            let known = self.load_page(page, changes);
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
        // The page as it is now, with the code as QEMU translated it.
        let mut now = vec![0u8; PAGE as usize];
        let readable = guest_memory::read_bytes(page, &mut now);
        if readable < now.len() {
            // Report no more than the translated bytes.
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
        changes.push(CodeChange::Code(
            page + first as u64,
            now[first..=last].to_vec(),
        ));
    }

    /// Returns the decoder's bytes of a page, after reporting the mapping that contains it.
    fn load_page(&mut self, page: u64, changes: &mut Vec<CodeChange>) -> KnownPage {
        let mut known = vec![None; PAGE as usize].into_boxed_slice();
        if mapping_containing(&self.reported, page).is_none() {
            if let Some(change) = self
                .find_mapping(page)
                .and_then(|found| self.report_mapping(found))
            {
                changes.push(change);
            }
        }
        let mut bytes = [0u8; PAGE as usize];
        let mut count = 0;
        if let Some(reported) = mapping_containing(&self.reported, page) {
            count = reported.bytes(page, &mut bytes);
        } else if let Some(reported) = mapping_containing(&self.stale, page) {
            // A program that moves its code to other pages has the same bytes there as before.
            let mut now = [0u8; PAGE as usize];
            count = reported.bytes(page, &mut bytes);
            let readable = guest_memory::read_bytes(page, &mut now);
            if count == 0 || readable < count || now[..count] != bytes[..count] {
                count = 0;
                self.drop_stale(page, page + PAGE);
                changes.push(CodeChange::Mapped(
                    FileMapping::without_file(page, page + PAGE),
                    None,
                ));
            }
        }
        for (into, byte) in known.iter_mut().zip(&bytes[..count]) {
            *into = Some(*byte);
        }
        known
    }

    /// Reports a mapping, if the decoder will have its bytes.
    fn report_mapping(&mut self, mapped: FileMapping) -> Option<CodeChange> {
        let size = mapped.end - mapped.start;
        let contents = if mapped.is_readable_by_recorder(&self.recorder) {
            None
        } else if size > MAX_SENT_MAPPING {
            return None;
        } else {
            let read = |start: u64, size: u64| {
                let mut bytes = vec![0; size as usize];
                let count = guest_memory::read_bytes(start, &mut bytes);
                bytes.truncate(count);
                bytes
            };
            let start = file_mappings::file_start_address(&mapped);
            Some(MappingContents {
                head: start.map_or_else(Vec::new, |start| read(start, PAGE)),
                code: read(mapped.start, size),
            })
        };
        let hashes = |contents: &MappingContents| {
            contents.code.chunks(PAGE as usize).map(hash_page).collect()
        };
        self.drop_stale(mapped.start, mapped.end);
        self.reported.push(ReportedMapping {
            mapped: mapped.clone(),
            sent: contents.as_ref().map(|all| (mapped.start, hashes(all))),
        });
        Some(CodeChange::Mapped(mapped, contents))
    }

    /// Forgets stale mappings in a range that another report covers.
    fn drop_stale(&mut self, start: u64, end: u64) {
        let stale = std::mem::take(&mut self.stale);
        let rest = stale
            .into_iter()
            .flat_map(|reported| reported.without(start, end));
        self.stale = rest.collect();
    }

    /// Returns the private file mapping of a page, without the parts that other reports cover.
    fn find_mapping(&self, page: u64) -> Option<FileMapping> {
        let mut found = file_mappings::find_mapping(page)?;
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

    /// For a recorder that can read this file later.
    fn reported_code() -> ReportedCode {
        ReportedCode::new(RecorderView::current())
    }

    #[test]
    fn unchanged_file_code_reports_only_its_mapping() {
        let mut code = [0u8; 16];
        assert_eq!(guest_memory::read_bytes(here(), &mut code), 16);
        let mut reported = reported_code();
        let changes = reported.check_code(here(), &code);
        let [CodeChange::Mapped(mapped, None)] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert!((mapped.start..mapped.end).contains(&here()));
        assert!(reported.knows_code(here(), &code));
        assert_eq!(reported.check_code(here(), &code), []);
    }

    #[test]
    fn mapping_that_the_recorder_cannot_read_is_sent_with_contents() {
        let mut code = [0u8; 16];
        guest_memory::read_bytes(here(), &mut code);
        let mut reported = ReportedCode::default();
        let changes = reported.check_code(here(), &code);
        let [CodeChange::Mapped(mapped, Some(contents))] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert_eq!(contents.head[..4], *b"\x7fELF");
        assert_eq!(contents.code.len() as u64, mapped.end - mapped.start);
        assert_eq!(
            contents.code[(here() - mapped.start) as usize..][..16],
            code
        );
        assert!(reported.knows_code(here(), &code));
    }

    #[test]
    fn known_code_is_code_without_reports() {
        let mut code = [0u8; 16];
        guest_memory::read_bytes(here(), &mut code);
        let mut reported = reported_code();
        assert!(!reported.knows_code(here(), &code));
        reported.check_code(here(), &code);
        assert!(reported.knows_code(here() + 4, &code[4..]));
        code[15] ^= 0xff;
        assert!(!reported.knows_code(here(), &code));
        assert!(!reported.knows_code((here() & !(PAGE - 1)) + PAGE - 1, &[0; 2]));
    }

    #[test]
    fn code_that_is_not_the_files_is_written() {
        let mut code = [0u8; 16];
        guest_memory::read_bytes(here(), &mut code);
        let mut reported = reported_code();
        reported.check_code(here(), &code);
        code[3] ^= 0xff;
        let changes = reported.check_code(here(), &code);
        assert_eq!(changes, [CodeChange::Code(here() + 3, vec![code[3]])]);
        reported.forget_range(here(), 1);
        assert_eq!(reported.check_code(here(), &code).len(), 2);
    }

    #[test]
    fn unmapping_splits_a_reported_mapping() {
        let mapped = FileMapping {
            start: 0x1000,
            end: 0x5000,
            offset: 0x2000,
            major: 1,
            minor: 2,
            inode: 3,
            path: b"/x".to_vec(),
        };
        let mut code = ReportedCode {
            reported: vec![ReportedMapping { mapped, sent: None }],
            ..ReportedCode::default()
        };
        code.forget_range(0x2000, 0x1000);
        let parts: Vec<_> = code
            .reported
            .iter()
            .map(|ReportedMapping { mapped: m, .. }| (m.start, m.end, m.offset))
            .collect();
        assert_eq!(parts, [(0x1000, 0x2000, 0x2000), (0x3000, 0x5000, 0x4000)]);
    }
}
