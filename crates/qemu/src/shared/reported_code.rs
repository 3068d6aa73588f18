//! The code bytes that the decoder will have, and the reports that it needs.
//!
//! All code passes here when QEMU translates it, before it runs. Its bytes are compared with those that the decoder
//! has: from a mapped file, or sent before. A file mapping is reported when code in it is first translated, with all
//! its bytes if the file may change or is not the recorder's file of that name. So the plugin need not follow mprotect,
//! or writes to code.

use std::collections::HashMap;

use rtit_events::code::{
    filesystem_view_of_process, read_mappings, CodeChange, Mapping, MappingContents,
    ReportedMapping, MAX_SENT_MAPPING, PAGE,
};

use crate::interface::guest_state;

/// The recorder's view of the file system, and its start in nanoseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecorderView {
    pub(crate) started_at: i128,
    /// The result of `filesystem_view` in the recorder.
    pub(crate) view: String,
}

impl RecorderView {
    #[cfg(test)]
    pub(crate) fn current_view() -> RecorderView {
        RecorderView {
            started_at: i128::MAX,
            view: filesystem_view_of_process("self").unwrap_or_default(),
        }
    }

    /// Returns whether the recorder can read the mapped bytes from the file later.
    fn can_read(&self, mapping: &Mapping) -> bool {
        mapping.is_readable_later(self.started_at)
            && filesystem_view_of_process("self").is_some_and(|view| view == self.view)
    }
}

fn mapping_containing(reported: &[ReportedMapping], address: u64) -> Option<&ReportedMapping> {
    let has = |reported: &&ReportedMapping| reported.mapping.contains_address(address);
    reported.iter().find(has)
}

/// Iterates over the parts of `code` in each page: the page, the offset in it, and the bytes.
fn parts_by_page(address: u64, code: &[u8]) -> impl Iterator<Item = (u64, usize, &[u8])> {
    let (mut at, mut rest) = (address, code);
    std::iter::from_fn(move || {
        let page = at & !(PAGE - 1);
        let offset = (at - page) as usize;
        let (part, after) = rest.split_at(rest.len().min(PAGE as usize - offset));
        at = at.wrapping_add(part.len() as u64);
        rest = after;
        (!part.is_empty()).then_some((page, offset, part))
    })
}

fn read_memory(start: u64, end: u64) -> Vec<u8> {
    let mut bytes = vec![0; (end - start) as usize];
    let count = guest_state::read_bytes(start, &mut bytes);
    bytes.truncate(count);
    bytes
}

/// The decoder's bytes of a page.
struct KnownPage {
    bytes: Vec<u8>,
    /// Where the decoder has bytes; None: everywhere.
    is_known: Option<Box<[bool]>>,
}

impl KnownPage {
    /// Without bytes none are known.
    fn new(bytes: Option<Vec<u8>>) -> KnownPage {
        let is_known = match bytes {
            Some(_) => None,
            None => Some(vec![false; PAGE as usize].into()),
        };
        let bytes = bytes.unwrap_or_else(|| vec![0; PAGE as usize]);
        KnownPage { bytes, is_known }
    }

    fn has_byte(&self, offset: usize, byte: u8) -> bool {
        self.has_bytes(offset, &[byte])
    }

    /// Returns whether the decoder has these bytes at an offset.
    fn has_bytes(&self, offset: usize, bytes: &[u8]) -> bool {
        let range = offset..offset + bytes.len();
        let is_known = |known: &[bool]| known[range.clone()].iter().all(|&byte| byte);
        self.bytes[range.clone()] == *bytes && self.is_known.as_deref().is_none_or(is_known)
    }

    fn set_bytes(&mut self, offset: usize, bytes: &[u8]) {
        let range = offset..offset + bytes.len();
        self.bytes[range.clone()].copy_from_slice(bytes);
        if let Some(known) = &mut self.is_known {
            known[range].fill(true);
        }
    }
}

#[derive(Default)]
pub(crate) struct ReportedCode {
    recorder: RecorderView,
    reported: Vec<ReportedMapping>,
    /// Reported mappings that have been unmapped. The decoder keeps using them until another report covers them.
    stale: Vec<ReportedMapping>,
    /// Reported memory without a file: start and end. The decoder finds the names of JIT code by it.
    anonymous: Vec<(u64, u64)>,
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
        for (page, offset, part) in parts_by_page(address, code) {
            self.check_page(page, offset, part, &mut changes);
        }
        changes
    }

    /// Returns whether `check_code` would return no reports.
    pub(crate) fn knows_code(&self, address: u64, code: &[u8]) -> bool {
        parts_by_page(address, code).all(|(page, offset, part)| {
            let known = self.pages.get(&page);
            known.is_some_and(|known| known.has_bytes(offset, part))
        })
    }

    /// Forgets the mappings in a range, which have been unmapped or replaced.
    pub(crate) fn forget_range(&mut self, start: u64, size: u64) {
        let end = start.saturating_add(size);
        let (from, to) = (start & !(PAGE - 1), end);
        self.pages
            .retain(|&page, _| page + PAGE <= from || page >= to);
        for (start, end) in std::mem::take(&mut self.anonymous) {
            let parts = [(start, end.min(from)), (start.max(to), end)];
            self.anonymous
                .extend(parts.into_iter().filter(|(start, end)| start < end));
        }
        for reported in std::mem::take(&mut self.reported) {
            self.stale
                .extend(reported.clone().part_within_range(from, to));
            self.reported.extend(reported.parts_outside_range(from, to));
        }
    }

    /// Returns the reported mapping of a file at an address.
    pub(crate) fn mapping_at(&self, address: u64) -> Option<&Mapping> {
        mapping_containing(&self.reported, address).map(|reported| &reported.mapping)
    }

    fn check_page(&mut self, page: u64, offset: usize, code: &[u8], changes: &mut Vec<CodeChange>) {
        if !self.pages.contains_key(&page) {
            let known = self.load_page(page, changes);
            self.pages.insert(page, known);
        }
        let Some(known) = self.pages.get_mut(&page) else {
            return;
        };
        if known.has_bytes(offset, code) {
            return;
        }
        // The page as it is now, with the code as QEMU translated it.
        let mut now = vec![0u8; PAGE as usize];
        let readable = guest_state::read_bytes(page, &mut now);
        if readable < now.len() {
            // Report no more than the translated bytes.
            now.clear();
            now.resize(PAGE as usize, 0);
        }
        if let Some(into) = now.get_mut(offset..offset + code.len()) {
            into.copy_from_slice(code);
        }
        let all = if readable == now.len() {
            0..now.len()
        } else {
            offset..offset + code.len()
        };
        let differs = |index: &usize| !known.has_byte(*index, now[*index]);
        let (Some(first), Some(last)) = (all.clone().find(differs), all.rev().find(differs)) else {
            return;
        };
        known.set_bytes(first, &now[first..=last]);
        changes.push(CodeChange::Code(
            page + first as u64,
            now[first..=last].to_vec(),
        ));
    }

    /// Returns the decoder's bytes of a page, after reporting the mapping that contains it.
    fn load_page(&mut self, page: u64, changes: &mut Vec<CodeChange>) -> KnownPage {
        if mapping_containing(&self.reported, page).is_none() {
            changes.extend(self.report_mapping_at(page));
        }
        let read_now = || read_memory(page, page + PAGE);
        let mut bytes = None;
        if let Some(reported) = mapping_containing(&self.reported, page) {
            bytes = reported.reader_bytes_of_page(page, read_now);
        } else if let Some(reported) = mapping_containing(&self.stale, page) {
            // A program that moves its code to other pages has the same bytes there as before.
            bytes = reported
                .reader_bytes_of_page(page, read_now)
                .filter(|bytes| *bytes == read_now());
            if bytes.is_none() {
                self.drop_stale(page, page + PAGE);
                let memory = Mapping::mapping_without_file(page, page + PAGE);
                changes.push(CodeChange::Mapped(memory, None));
            }
        }
        KnownPage::new(bytes)
    }

    /// Reports the memory that contains a page: the mapping of a file, else memory without a file.
    fn report_mapping_at(&mut self, page: u64) -> Option<CodeChange> {
        let is_reported = |(start, end): &(u64, u64)| (*start..*end).contains(&page);
        if self.anonymous.iter().any(is_reported) {
            return None;
        }
        let all = read_mappings("self")?;
        let index = all
            .iter()
            .position(|mapping| mapping.contains_address(page))?;
        let found = &all[index];
        let reported = found
            .is_private_file()
            .then(|| self.unreported_part_of_file(found.clone(), page))
            .and_then(|mapping| self.report_file_mapping(mapping));
        reported.or_else(|| self.report_anonymous_memory(adjacent_memory(&all, index), page))
    }

    /// Reports memory without a file, except where the decoder uses files.
    fn report_anonymous_memory(&mut self, memory: Mapping, page: u64) -> Option<CodeChange> {
        if mapping_containing(&self.stale, page).is_some() {
            return None;
        }
        let files = self.reported.iter().chain(&self.stale);
        let files = files.map(|file| (file.mapping.start, file.mapping.end));
        let others = files.chain(self.anonymous.iter().copied());
        let Mapping { start, end, .. } = part_around_page(memory, page, others);
        self.anonymous.push((start, end));
        let memory = Mapping::mapping_without_file(start, end);
        Some(CodeChange::Mapped(memory, None))
    }

    /// Reports a mapping, if the decoder will have its bytes.
    fn report_file_mapping(&mut self, mapping: Mapping) -> Option<CodeChange> {
        let contents = if self.recorder.can_read(&mapping) {
            None
        } else if mapping.end - mapping.start > MAX_SENT_MAPPING {
            return None;
        } else {
            Some(MappingContents::read_contents(
                &mapping,
                "self",
                read_memory,
            ))
        };
        self.drop_stale(mapping.start, mapping.end);
        self.reported
            .push(ReportedMapping::new(mapping.clone(), contents.as_ref()));
        Some(CodeChange::Mapped(mapping, contents))
    }

    /// Forgets stale mappings in a range that another report covers.
    fn drop_stale(&mut self, start: u64, end: u64) {
        let stale = std::mem::take(&mut self.stale);
        let rest = stale
            .into_iter()
            .flat_map(|reported| reported.parts_outside_range(start, end));
        self.stale = rest.collect();
    }

    /// Returns the part of the mapping of a file around a page, up to other reported mappings.
    fn unreported_part_of_file(&self, mapping: Mapping, page: u64) -> Mapping {
        let files = self.reported.iter();
        let others = files.map(|file| (file.mapping.start, file.mapping.end));
        let mut found = part_around_page(mapping, page, others);
        // QEMU maps code of the program without the right to execute it.
        found.protection = (libc::PROT_READ | libc::PROT_EXEC) as u32;
        found
    }
}

/// Returns a mapping, with the anonymous memory next to it if it is such memory. JIT compilers and QEMU change the
/// protection of single pages, and each change splits a mapping.
fn adjacent_memory(all: &[Mapping], index: usize) -> Mapping {
    let is_anonymous = |mapping: &&Mapping| mapping.path == b"//anon";
    let mut memory = all[index].clone();
    if is_anonymous(&&memory) {
        for before in all[..index].iter().rev().take_while(is_anonymous) {
            if before.end == memory.start {
                memory.start = before.start;
            }
        }
        for after in all[index + 1..].iter().take_while(is_anonymous) {
            if after.start == memory.end {
                memory.end = after.end;
            }
        }
    }
    memory
}

/// Returns the part of a mapping that contains a page and none of `others`.
fn part_around_page(
    mut mapping: Mapping,
    page: u64,
    others: impl Iterator<Item = (u64, u64)>,
) -> Mapping {
    for (start, end) in others {
        if end <= page && end > mapping.start {
            mapping.offset += end - mapping.start;
            mapping.start = end;
        }
        if start > page && start < mapping.end {
            mapping.end = start;
        }
    }
    mapping
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_code_address() -> u64 {
        own_code_address as fn() -> u64 as usize as u64
    }

    /// For a recorder that can read this file later.
    fn reported_code() -> ReportedCode {
        ReportedCode::new(RecorderView::current_view())
    }

    #[test]
    fn unchanged_file_code_reports_only_its_mapping() {
        let mut code = [0u8; 16];
        assert_eq!(guest_state::read_bytes(own_code_address(), &mut code), 16);
        let mut reported = reported_code();
        let changes = reported.check_code(own_code_address(), &code);
        let [CodeChange::Mapped(mapped, None)] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert!((mapped.start..mapped.end).contains(&own_code_address()));
        assert!(reported.knows_code(own_code_address(), &code));
        assert_eq!(reported.check_code(own_code_address(), &code), []);
    }

    #[test]
    fn mapping_that_the_recorder_cannot_read_is_sent_with_contents() {
        let mut code = [0u8; 16];
        guest_state::read_bytes(own_code_address(), &mut code);
        let mut reported = ReportedCode::default();
        let changes = reported.check_code(own_code_address(), &code);
        let [CodeChange::Mapped(mapped, Some(contents))] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert_eq!(contents.head[..4], *b"\x7fELF");
        assert_eq!(contents.code.len() as u64, mapped.end - mapped.start);
        assert_eq!(
            contents.code[(own_code_address() - mapped.start) as usize..][..16],
            code
        );
        assert!(reported.knows_code(own_code_address(), &code));
    }

    #[test]
    fn known_code_is_code_without_reports() {
        let mut code = [0u8; 16];
        guest_state::read_bytes(own_code_address(), &mut code);
        let mut reported = reported_code();
        assert!(!reported.knows_code(own_code_address(), &code));
        reported.check_code(own_code_address(), &code);
        assert!(reported.knows_code(own_code_address() + 4, &code[4..]));
        code[15] ^= 0xff;
        assert!(!reported.knows_code(own_code_address(), &code));
        assert!(!reported.knows_code((own_code_address() & !(PAGE - 1)) + PAGE - 1, &[0; 2]));
    }

    #[test]
    fn code_that_is_not_the_files_is_written() {
        let mut code = [0u8; 16];
        guest_state::read_bytes(own_code_address(), &mut code);
        let mut reported = reported_code();
        reported.check_code(own_code_address(), &code);
        code[3] ^= 0xff;
        let changes = reported.check_code(own_code_address(), &code);
        assert_eq!(
            changes,
            [CodeChange::Code(own_code_address() + 3, vec![code[3]])]
        );
        reported.forget_range(own_code_address(), 1);
        assert_eq!(reported.check_code(own_code_address(), &code).len(), 2);
    }

    #[test]
    fn zeros_in_memory_without_a_file_are_reported() {
        let memory = vec![0u8; 1 << 20];
        let page = (memory.as_ptr() as u64 & !(PAGE - 1)) + PAGE;
        let mut reported = reported_code();
        assert!(!reported.knows_code(page, &memory[..8]));
        let changes = reported.check_code(page, &memory[..8]);
        let [CodeChange::Mapped(..), CodeChange::Code(at, bytes)] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert_eq!((*at, bytes.as_slice()), (page, &memory[..PAGE as usize]));
        assert!(reported.knows_code(page, &memory[..8]));
    }

    #[test]
    fn memory_without_a_file_is_reported_once() {
        let memory = vec![0x90u8; 1 << 20]; // too large for the heap
        let start = memory.as_ptr() as u64;
        let second_page = (start & !(PAGE - 1)) + PAGE;
        let mut reported = reported_code();
        let changes = reported.check_code(second_page, &memory[..8]);
        let [CodeChange::Mapped(mapped, None), CodeChange::Code(page, bytes)] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert_eq!(mapped.path, b"//anon");
        assert!(mapped.is_executable());
        assert!(mapped.start <= start && start + (1 << 20) <= mapped.end);
        assert_eq!((*page, bytes.len() as u64), (second_page, PAGE));
        let third_page = second_page + PAGE;
        let changes = reported.check_code(third_page, &memory[..8]);
        assert!(matches!(changes[..], [CodeChange::Code(..)]), "{changes:?}");
        reported.forget_range(third_page, PAGE);
        let changes = reported.check_code(third_page, &memory[..8]);
        let [CodeChange::Mapped(again, None), CodeChange::Code(..)] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert_eq!((again.start, again.end), (third_page, third_page + PAGE));
    }
}
