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

fn read_memory(start: u64, end: u64) -> Vec<u8> {
    let mut bytes = vec![0; (end - start) as usize];
    let count = guest_state::read_bytes(start, &mut bytes);
    bytes.truncate(count);
    bytes
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
        let now = read_memory(page, page + PAGE);
        let mut bytes = None;
        if let Some(reported) = mapping_containing(&self.reported, page) {
            bytes = reported.reader_bytes_of_page(page, &now);
        } else if let Some(reported) = mapping_containing(&self.stale, page) {
            // A program that moves its code to other pages has the same bytes there as before.
            bytes = reported
                .reader_bytes_of_page(page, &now)
                .filter(|bytes| *bytes == now);
            if bytes.is_none() {
                self.drop_stale(page, page + PAGE);
                let memory = Mapping::mapping_without_file(page, page + PAGE);
                changes.push(CodeChange::Mapped(memory, None));
            }
        }
        for (into, byte) in known.iter_mut().zip(bytes.into_iter().flatten()) {
            *into = Some(byte);
        }
        known
    }

    /// Reports a mapping, if the decoder will have its bytes.
    fn report_mapping(&mut self, mapping: Mapping) -> Option<CodeChange> {
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

    /// Returns the private file mapping of a page, without the parts that other reports cover.
    fn find_mapping(&self, page: u64) -> Option<Mapping> {
        let is_there =
            |mapping: &Mapping| mapping.is_private_file() && mapping.contains_address(page);
        let mut found = read_mappings("self")?.into_iter().find(is_there)?;
        // QEMU maps code of the program without the right to execute it.
        found.protection = (libc::PROT_READ | libc::PROT_EXEC) as u32;
        for ReportedMapping { mapping: other, .. } in &self.reported {
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
}
