//! One address space: its executable mappings, its decoded instructions, and the code bytes that the reader of the
//! events has. Code that no readable file contains is reported before it runs.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use libc::pid_t;
use rtit_events::code::{
    filesystem_view_of_process, read_mappings, CodeChange, Mapping, MappingContents,
    ReportedMapping, MAX_SENT_MAPPING, PAGE,
};
use rtit_x86::{CodeMode, Instruction, InstructionClass, MAX_LENGTH};

use crate::{procfs, ptrace};

/// The legacy vsyscall page. Its code cannot be read; the kernel emulates it.
pub(crate) const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;

/// Returns the executable mappings of `pid` in address order; None if they cannot be read.
pub(crate) fn executable_mappings(pid: pid_t) -> Option<Vec<Mapping>> {
    let mut mappings = read_mappings(&pid.to_string())?;
    mappings.retain(|mapping| mapping.is_executable() && mapping.start < VSYSCALL);
    Some(mappings)
}

/// Returns when the first recording of this process began, in nanoseconds, less the lateness of file-system clocks.
fn recording_start_time() -> i128 {
    static BEGAN: OnceLock<i128> = OnceLock::new();
    const LATE: Duration = Duration::from_secs(2);
    *BEGAN.get_or_init(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.map_or(0, |now| now.saturating_sub(LATE).as_nanos() as i128)
    })
}

/// The instruction at an address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FetchedInstruction {
    /// None: no instruction, or no readable memory.
    pub(crate) instruction: Option<Instruction>,
    /// The vector of INT n, INT3, INT1.
    pub(crate) vector: u8,
    /// The process's memory may not be read.
    pub(crate) hidden: bool,
}

/// A multiplication spreads instruction addresses well.
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
pub(crate) struct AddressSpace {
    /// In address order.
    mappings: Vec<Mapping>,
    /// 64-bit instructions in stable mappings.
    decoded: ByAddress<Instruction>,
    /// Pages that were reported, with their bytes.
    reported: ByAddress<Rc<[u8]>>,
    /// The files that the reader has, without overlaps.
    files: Vec<ReportedMapping>,
    /// The starts of mappings that may change without a system call of the program.
    unsettled: Vec<u64>,
}

impl AddressSpace {
    /// Returns the address space of a forked process.
    pub(crate) fn copy_for_fork(&self) -> AddressSpace {
        AddressSpace {
            mappings: self.mappings.clone(),
            decoded: ByAddress::default(),
            reported: self.reported.clone(),
            files: self.files.clone(),
            unsettled: self.unsettled.clone(),
        }
    }

    /// Returns whether there is, or was, code between the addresses, so that a change of mappings there matters.
    pub(crate) fn has_code_in_range(&self, start: u64, end: u64) -> bool {
        self.mappings
            .iter()
            .any(|mapping| mapping.overlaps_range(start, end))
    }

    /// Returns the address of a byte of a file.
    pub(crate) fn address_of_file_offset(&self, path: &[u8], offset: u64) -> Option<u64> {
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

    /// Reads the mappings again and returns reports of the changes.
    pub(crate) fn reread_mappings(&mut self, tid: pid_t) -> Vec<CodeChange> {
        let Some(mut mappings) = executable_mappings(tid) else {
            return Vec::new();
        };
        // The file of an unchanged mapping may have been deleted.
        for mapping in &mut mappings {
            if let Some(old) = self
                .mappings
                .iter()
                .find(|old| mapping.is_deleted_version_of(old))
            {
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
        // Forget what was known about addresses with changed mappings.
        let stale = |address: u64, length: u64| {
            gone.iter()
                .chain(&new)
                .any(|m| m.overlaps_range(address, address + length))
        };
        self.decoded
            .retain(|&ip, instruction| !stale(ip, u64::from(instruction.length)));
        self.reported.retain(|&page, _| !stale(page, PAGE));
        self.unsettled.retain(|&start| !stale(start, 1));
        let view = filesystem_view_of_process(&tid.to_string());
        let ours = view.is_some() && view == filesystem_view_of_process("self");
        let mut changes = Vec::new();
        for mapping in new {
            self.report_new_mapping(tid, mapping, ours, &mut changes);
        }
        changes
    }

    /// Reports a new mapping. `ours`: paths mean the same files to the tracer.
    fn report_new_mapping(
        &mut self,
        tid: pid_t,
        mapping: Mapping,
        ours: bool,
        changes: &mut Vec<CodeChange>,
    ) {
        if mapping.is_vdso() {
            // At most a few pages; the bound guards against a wrong /proc.
            let code = read_memory_range(
                tid,
                mapping.start,
                mapping.end.min(mapping.start + 64 * PAGE),
            );
            let start = mapping.start;
            changes.push(CodeChange::Mapped(mapping, None));
            changes.push(CodeChange::Code(start, code));
        } else if !mapping.has_stable_bytes() {
            if !self.still_shows_files(tid, &mapping) {
                self.forget_file_bytes(mapping.start, mapping.end);
                changes.push(CodeChange::Mapped(mapping, None));
            }
        } else if ours && mapping.is_readable_later(recording_start_time()) {
            let (start, end) = (mapping.start, mapping.end);
            self.forget_file_bytes(start, end);
            self.files.push(ReportedMapping::new(mapping.clone(), None));
            changes.push(CodeChange::Mapped(mapping, None));
            for page in procfs::modified_pages(tid, start, end) {
                let bytes = read_memory_range(tid, page, page + PAGE);
                if bytes.len() == PAGE as usize {
                    changes.push(CodeChange::Code(page, bytes));
                    self.forget_file_bytes(page, page + PAGE);
                }
            }
        } else {
            self.unsettled.push(mapping.start);
            if !self.was_mapping_sent(&mapping) {
                self.forget_file_bytes(mapping.start, mapping.end);
                changes.push(self.report_mapping_with_contents(tid, mapping));
            }
        }
    }

    /// Returns a report with the contents of the mapping: the reader may find another file by this path, or none.
    fn report_mapping_with_contents(&mut self, tid: pid_t, mapping: Mapping) -> CodeChange {
        if mapping.end - mapping.start > MAX_SENT_MAPPING {
            let path = b"//anon".to_vec();
            return CodeChange::Mapped(Mapping { path, ..mapping }, None);
        }
        let read = |start, end| read_memory_range(tid, start, end);
        let contents = MappingContents::read_contents(&mapping, &tid.to_string(), read);
        let reported = ReportedMapping::new(mapping.clone(), Some(&contents));
        self.files.push(reported);
        CodeChange::Mapped(mapping, Some(contents))
    }

    /// Returns whether the mapping is part of one that was sent.
    fn was_mapping_sent(&self, mapping: &Mapping) -> bool {
        let is_part = |whole: &Mapping| {
            whole.start <= mapping.start
                && mapping.end <= whole.end
                && mapping.offset == whole.offset + (mapping.start - whole.start)
                && (mapping.inode, &mapping.path) == (whole.inode, &whole.path)
        };
        self.files
            .iter()
            .any(|file| file.contents_were_sent() && is_part(&file.mapping))
    }

    /// Returns whether memory without a file has the bytes of the files mapped there before, because the program has
    /// moved its code. The reader then keeps using the files.
    fn still_shows_files(&self, tid: pid_t, mapping: &Mapping) -> bool {
        let pages = (mapping.start..mapping.end).step_by(PAGE as usize);
        mapping.inode == 0
            && mapping.end - mapping.start <= MAX_SENT_MAPPING
            && pages
                .into_iter()
                .all(|page| self.reader_has_bytes(page, &read_memory_range(tid, page, page + PAGE)))
    }

    fn reader_has_bytes(&self, page: u64, bytes: &[u8]) -> bool {
        let overlaps = |file: &&ReportedMapping| file.mapping.overlaps_range(page, page + PAGE);
        self.files.iter().find(overlaps).is_some_and(|file| {
            (file.contents_were_sent() || file.mapping.is_readable_later(recording_start_time()))
                && file
                    .reader_bytes_of_page(page, || bytes.to_vec())
                    .as_deref()
                    == Some(bytes)
        })
    }

    /// Forgets the files in a range, because the reader has other bytes there now.
    fn forget_file_bytes(&mut self, start: u64, end: u64) {
        let files = std::mem::take(&mut self.files);
        self.files = files
            .into_iter()
            .flat_map(|file| file.parts_outside_range(start, end))
            .collect();
    }

    /// Returns the instruction that `tid` executes next at `ip`, and appends the reports that must precede it.
    pub(crate) fn fetch_instruction(
        &mut self,
        tid: pid_t,
        ip: u64,
        mode: CodeMode,
        changes: &mut Vec<CodeChange>,
    ) -> FetchedInstruction {
        if mode == CodeMode::Bits64 {
            if let Some(&instruction) = self.decoded.get(&ip) {
                return FetchedInstruction {
                    instruction: Some(instruction),
                    ..FetchedInstruction::default()
                };
            }
        }
        if self.mapping_at(ip).is_none() {
            // The stack grew, or a process that shares the memory has mapped code.
            changes.extend(self.reread_mappings(tid));
        }
        let mut bytes = [0u8; MAX_LENGTH];
        let count = ptrace::read_bytes(tid, ip, &mut bytes);
        let bytes = &bytes[..count];
        let mapping = match self.mapping_at(ip) {
            Some(mapping) if !bytes.is_empty() => mapping,
            _ => {
                return FetchedInstruction {
                    hidden: procfs::is_memory_hidden(tid),
                    ..FetchedInstruction::default()
                };
            }
        };
        let instruction = rtit_x86::decode(bytes, ip, mode).ok();
        let length = instruction.map_or(count, |instruction| usize::from(instruction.length));
        let bytes = bytes.get(..length).unwrap_or(bytes);
        let interrupts =
            instruction.is_some_and(|i| i.class == InstructionClass::SoftwareInterrupt);
        let inside = ip.saturating_add(length as u64) <= mapping.end;
        if !(mapping.has_stable_bytes() && inside && !self.unsettled.contains(&mapping.start)) {
            self.report_code(tid, ip, bytes, changes);
        } else if let Some(instruction) = instruction {
            if mode == CodeMode::Bits64 && !interrupts {
                self.decoded.insert(ip, instruction);
            }
        }
        FetchedInstruction {
            instruction,
            vector: if interrupts {
                interrupt_vector(bytes)
            } else {
                0
            },
            hidden: false,
        }
    }

    /// Reports the pages of `bytes` at `address`, unless these bytes are known.
    fn report_code(
        &mut self,
        tid: pid_t,
        address: u64,
        bytes: &[u8],
        changes: &mut Vec<CodeChange>,
    ) {
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
                let readable = ptrace::read_bytes(tid, page, &mut whole);
                whole.truncate(readable);
                if known.is_some() || !self.reader_has_bytes(page, &whole) {
                    changes.extend(changed_bytes(page, known.map(Rc::as_ref), &whole));
                    self.forget_file_bytes(page, page + PAGE);
                }
                self.reported.insert(page, whole.into());
            }
            done += count;
        }
    }
}

/// Reads from `start` to `end`, or to the first unreadable page.
fn read_memory_range(tid: pid_t, start: u64, end: u64) -> Vec<u8> {
    let mut bytes = vec![0u8; (end - start) as usize];
    let count = ptrace::read_bytes(tid, start, &mut bytes);
    bytes.truncate(count);
    bytes
}

/// Returns the part of a page that differs from the reported bytes.
fn changed_bytes(page: u64, known: Option<&[u8]>, now: &[u8]) -> Option<CodeChange> {
    let known = known.unwrap_or_default();
    let differs = |index: &usize| known.get(*index) != now.get(*index);
    let first = (0..now.len()).find(differs)?;
    let last = (0..now.len()).rfind(differs)?;
    let bytes = now.get(first..=last)?.to_vec();
    Some(CodeChange::Code(page + first as u64, bytes))
}

/// Returns the vector of a software interrupt instruction: CD ib, CC, F1 or CE, perhaps with prefixes.
fn interrupt_vector(bytes: &[u8]) -> u8 {
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
    fn only_changed_bytes_of_a_page_are_reported() {
        let known = [1u8, 2, 3, 4, 5];
        assert_eq!(changed_bytes(0x1000, Some(&known), &known), None);
        assert_eq!(
            changed_bytes(0x1000, Some(&known), &[1, 9, 3, 8, 5]),
            Some(CodeChange::Code(0x1001, vec![9, 3, 8]))
        );
        assert_eq!(
            changed_bytes(0x1000, None, &known),
            Some(CodeChange::Code(0x1000, known.to_vec()))
        );
        assert_eq!(changed_bytes(0x1000, None, &[]), None);
    }

    #[test]
    fn vectors_of_software_interrupts() {
        assert_eq!(interrupt_vector(&[0xcc]), 3);
        assert_eq!(interrupt_vector(&[0xf1]), 1);
        assert_eq!(interrupt_vector(&[0xcd, 0x80]), 0x80);
        assert_eq!(interrupt_vector(&[0xcd, 0xcc]), 0xcc);
        assert_eq!(interrupt_vector(&[0x48, 0xcd, 0x03]), 3);
    }

    #[test]
    fn own_code_is_fetched_once_and_found_again() {
        let ip = own_code_is_fetched_once_and_found_again as fn() as usize as u64;
        let tid = std::process::id() as pid_t;
        let mut space = AddressSpace::default();
        let mut changes = Vec::new();
        let first = space.fetch_instruction(tid, ip, CodeMode::Bits64, &mut changes);
        assert!(first.instruction.is_some());
        assert!(changes
            .iter()
            .any(|c| matches!(c, CodeChange::Mapped(m, _) if m.is_vdso())));
        changes.clear();
        let again = space.fetch_instruction(tid, ip, CodeMode::Bits64, &mut changes);
        assert_eq!((again.instruction, changes.len()), (first.instruction, 0));
    }

    #[test]
    fn unmapped_address_has_no_instruction() {
        let mut space = AddressSpace::default();
        let fetched = space.fetch_instruction(
            std::process::id() as pid_t,
            8,
            CodeMode::Bits64,
            &mut Vec::new(),
        );
        assert!(fetched.instruction.is_none() && !fetched.hidden);
    }
}
