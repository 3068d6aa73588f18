//! The code that the reader of the recording has, by address space.
//!
//! Bytes come from translated blocks, so they are those that the processor executes. The first bytes at an address
//! count as there from the beginning; nothing was executed there before. Other bytes at the same address are a change,
//! which needs a time.
//!
//! A program that begins, by fork or exec, often has the page table of an earlier one. Code that differs from that of
//! the earlier program then counts as there from the beginning of the program.
//!
//! The kernel, the upper half of the addresses, is one space. The lower half is a space for each CR3. All processors
//! share the spaces.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::Arc;

const PAGE: u64 = 4096;

/// What the reader lacks before a block runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CodeReport {
    /// Bytes where this program has executed nothing yet. They are valid from `CodeSpace::beginning` on.
    First(u64, Vec<u8>),
    /// Other bytes than the program has executed there.
    Changed(u64, Vec<u8>),
}

struct Page {
    bytes: [u8; PAGE as usize],
    /// A bit for each byte.
    known: [u64; PAGE as usize / 64],
    /// Bytes that this program has executed.
    executed: [u64; PAGE as usize / 64],
}

#[derive(Default)]
pub(super) struct CodeSpace {
    pages: HashMap<u64, Box<Page>>,
    /// The time at which its program began; 0 for the first one.
    pub(super) beginning: u64,
    /// Number of changes; blocks that were checked before the last change must be checked again.
    pub(super) version: Arc<AtomicU32>,
}

impl CodeSpace {
    pub(super) fn has_code(&self) -> bool {
        !self.pages.is_empty()
    }

    /// Starts another program in this space at `time`. The caller must increment `version`.
    pub(super) fn begin_at(&mut self, time: u64) {
        self.beginning = time;
        for page in self.pages.values_mut() {
            page.executed.fill(0);
        }
    }

    /// Returns what the reader lacks, and counts it as reported. A change is the last report; the caller must count it
    /// in `version`.
    pub(super) fn check_code(&mut self, start: u64, code: &[u8]) -> Vec<CodeReport> {
        let mut reports = Vec::new();
        let mut differs = false;
        let mut is_run_open = false;
        for (address, &byte) in (start..).zip(code) {
            let page = self.pages.entry(address / PAGE).or_insert_with(|| {
                Box::new(Page {
                    bytes: [0; PAGE as usize],
                    known: [0; PAGE as usize / 64],
                    executed: [0; PAGE as usize / 64],
                })
            });
            let offset = (address % PAGE) as usize;
            let (word, bit) = (offset / 64, 1 << (offset % 64));
            let is_equal = page.known[word] & bit != 0 && page.bytes[offset] == byte;
            let is_executed = page.executed[word] & bit != 0;
            page.known[word] |= bit;
            page.executed[word] |= bit;
            if !is_equal && !is_executed {
                match reports.last_mut() {
                    Some(CodeReport::First(_, bytes)) if is_run_open => bytes.push(byte),
                    _ => reports.push(CodeReport::First(address, vec![byte])),
                }
            }
            is_run_open = !is_equal && !is_executed;
            differs |= !is_equal && is_executed;
            page.bytes[offset] = byte;
        }
        if differs {
            reports.push(CodeReport::Changed(start, code.to_vec()));
        }
        reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unknown_and_changed_bytes_are_reported() {
        use CodeReport::{Changed, First};
        let mut space = CodeSpace::default();
        assert_eq!(
            space.check_code(0xffe, &[1, 2, 3]),
            [First(0xffe, vec![1, 2, 3])]
        );
        assert_eq!(space.check_code(0xffe, &[1, 2, 3]), []);
        let around = space.check_code(0xffd, &[0, 1, 2, 3, 4]);
        assert_eq!(around, [First(0xffd, vec![0]), First(0x1001, vec![4])]);
        assert_eq!(
            space.check_code(0xfff, &[2, 9]),
            [Changed(0xfff, vec![2, 9])]
        );
        assert_eq!(space.check_code(0x1000, &[9]), []);
    }

    #[test]
    fn program_that_begins_has_other_code_from_its_beginning_on() {
        use CodeReport::{Changed, First};
        let mut space = CodeSpace::default();
        space.check_code(0x1000, &[1, 2, 3, 4]);
        space.begin_at(700);
        assert_eq!(space.beginning, 700);
        let reports = space.check_code(0x1000, &[1, 9, 3]);
        assert_eq!(reports, [First(0x1001, vec![9])]);
        let reports = space.check_code(0x1000, &[1, 8, 3, 4]);
        assert_eq!(reports, [Changed(0x1000, vec![1, 8, 3, 4])]);
    }
}
