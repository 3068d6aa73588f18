//! Reports of code: mapped files, and bytes that no file has.
//!
//! The reader of a recording finds code by the path of a mapped file. A mapping is sent with all its bytes if the file
//! may change, or is another one for the reader.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

pub const PAGE: u64 = 4096;
/// The largest mapping of which all bytes are sent. Of a larger one, the pages that run are sent, as of memory without
/// a file.
pub const MAX_SENT_MAPPING: u64 = 64 << 20;
/// The kernel appends this to the path of a deleted file. A file may have such a name as well.
const DELETED: &[u8] = b" (deleted)";

/// The blob of [`crate::EventKind::Mmap`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// File offset of `start`, bytes.
    pub offset: u64,
    /// PROT_ bits.
    pub protection: u32,
    /// MAP_ bits: private or shared, and anonymous.
    pub flags: u32,
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
    /// The file, or a name in brackets, or "//anon".
    pub path: Vec<u8>,
}

/// Returns the mappings of a process (a number, or `self`) in address order; None if they cannot be read.
pub fn read_mappings(process: &str) -> Option<Vec<Mapping>> {
    let text = fs::read(format!("/proc/{process}/maps")).ok()?;
    Some(
        text.split(|&b| b == b'\n')
            .filter_map(parse_maps_line)
            .collect(),
    )
}

/// Returns mount namespace and root directory of a process. Where they are equal, a path means the same file.
pub fn filesystem_view_of_process(process: &str) -> Option<String> {
    let namespace = fs::read_link(format!("/proc/{process}/ns/mnt")).ok()?;
    let root = fs::metadata(format!("/proc/{process}/root/")).ok()?;
    let (device, inode) = (root.dev(), root.ino());
    Some(format!("{} {device} {inode}", namespace.display()))
}

/// Parses a line of /proc/PID/maps: address, permissions, offset, device, inode, blanks, path with blanks or none.
fn parse_maps_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let end = rest.iter().position(|&b| b == b' ').unwrap_or(rest.len());
        let (field, tail) = rest.split_at(end);
        rest = tail.strip_prefix(b" ").unwrap_or(tail);
        std::str::from_utf8(field).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    let permissions = field()?;
    let offset = field()?;
    let (major, minor) = field()?.split_once(':')?;
    let inode: u64 = field()?.parse().ok()?;
    let path = unescape_path(rest.trim_ascii_start());
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut protection = 0;
    let mut flags = libc::MAP_PRIVATE;
    for letter in permissions.bytes() {
        match letter {
            b'r' => protection |= libc::PROT_READ,
            b'w' => protection |= libc::PROT_WRITE,
            b'x' => protection |= libc::PROT_EXEC,
            b's' => flags = libc::MAP_SHARED,
            _ => {}
        }
    }
    if inode == 0 {
        flags |= libc::MAP_ANONYMOUS;
    }
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        protection: protection as u32,
        flags: flags as u32,
        major: hex(major)? as u32,
        minor: hex(minor)? as u32,
        inode,
        path: if path.is_empty() {
            b"//anon".to_vec()
        } else {
            path
        },
    })
}

/// Decodes `\012`, as which the kernel writes a line feed in a path.
fn unescape_path(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, tail)) = rest.split_first() {
        let line_feed = rest.strip_prefix(b"\\012");
        out.push(line_feed.map_or(first, |_| b'\n'));
        rest = line_feed.unwrap_or(tail);
    }
    out
}

impl Mapping {
    /// Returns executable memory without a file.
    pub fn mapping_without_file(start: u64, end: u64) -> Mapping {
        Mapping {
            start,
            end,
            protection: (libc::PROT_READ | libc::PROT_EXEC) as u32,
            flags: libc::MAP_PRIVATE as u32,
            path: b"//anon".to_vec(),
            ..Mapping::default()
        }
    }

    /// Little-endian: offset u64, protection, flags, major, minor u32, inode, inode generation (always 0) u64, path,
    /// NUL.
    pub fn to_blob(&self) -> Vec<u8> {
        let mut blob = self.offset.to_le_bytes().to_vec();
        for value in [self.protection, self.flags, self.major, self.minor] {
            blob.extend(value.to_le_bytes());
        }
        blob.extend(self.inode.to_le_bytes());
        blob.extend(0u64.to_le_bytes());
        blob.extend(&self.path);
        blob.push(0);
        blob
    }

    pub fn is_executable(&self) -> bool {
        self.protection & libc::PROT_EXEC as u32 != 0
    }

    pub fn is_private_file(&self) -> bool {
        self.inode != 0 && self.flags & libc::MAP_PRIVATE as u32 != 0 && self.path.starts_with(b"/")
    }

    pub fn is_vdso(&self) -> bool {
        self.path == b"[vdso]"
    }

    /// Returns whether the bytes are those of the file (or vDSO) as long as the mapping exists.
    pub fn has_stable_bytes(&self) -> bool {
        let writable = self.protection & libc::PROT_WRITE as u32 != 0;
        let shared = self.flags & libc::MAP_SHARED as u32 != 0;
        !writable && !shared && (self.inode != 0 || self.is_vdso())
    }

    /// Returns whether this is `old` after its file was deleted.
    pub fn is_deleted_version_of(&self, old: &Mapping) -> bool {
        let renamed = Mapping {
            path: [&old.path, DELETED].concat(),
            ..old.clone()
        };
        *self == renamed
    }

    pub fn contains_address(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    pub fn overlaps_range(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }

    /// Returns whether the mapped bytes can be read from the file later: the path leads to the mapped file, which has
    /// not changed since `started_at`, nanoseconds since 1970. The reader must have the process's view of paths.
    pub fn is_readable_later(&self, started_at: i128) -> bool {
        let Ok(found) = fs::metadata(OsStr::from_bytes(&self.path)) else {
            return false;
        };
        let changed = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
        found.ino() == self.inode && changed < started_at
    }

    /// Returns the address of the first byte of the file that this mapping shows a later part of.
    pub fn file_start_address(&self, process: &str) -> Option<u64> {
        let of_file = |m: &Mapping| (m.major, m.minor, m.inode);
        let starts = |m: &&Mapping| m.offset == 0 && m.start <= self.start;
        let mappings = read_mappings(process)?;
        let mut found = mappings.iter().filter(starts);
        found
            .rfind(|m| of_file(m) == of_file(self))
            .map(|m| m.start)
    }

    /// Reads the file's bytes for the page at `page`, with zeros after the file's end; None if it cannot be read.
    // The file is not kept open: a program may close any descriptor, and its own numbers must not shift.
    fn read_page(&self, page: u64) -> Option<Vec<u8>> {
        let file = File::open(OsStr::from_bytes(&self.path)).ok()?;
        if file.metadata().ok()?.ino() != self.inode {
            return None;
        }
        let mut bytes = vec![0; PAGE as usize];
        let mut count = 0;
        while count < bytes.len() {
            let offset = self.offset + (page - self.start) + count as u64;
            match file.read_at(&mut bytes[count..], offset).ok()? {
                0 => break,
                more => count += more,
            }
        }
        (count > 0).then_some(bytes)
    }
}

/// A report that must precede the execution of code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CodeChange {
    /// With its contents if the reader cannot read them from the file later.
    Mapped(Mapping, Option<MappingContents>),
    /// Bytes at an address.
    Code(u64, Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappingContents {
    /// The first bytes of the file, if they are mapped.
    pub head: Vec<u8>,
    /// All mapped bytes.
    pub code: Vec<u8>,
}

impl MappingContents {
    /// Reads the contents of a mapping of `process`; `read` reads the memory between two addresses.
    pub fn read_contents(
        mapping: &Mapping,
        process: &str,
        read: impl Fn(u64, u64) -> Vec<u8>,
    ) -> MappingContents {
        let start = mapping.file_start_address(process);
        MappingContents {
            head: start.map_or_else(Vec::new, |start| read(start, start + PAGE)),
            code: read(mapping.start, mapping.end),
        }
    }
}

/// A mapping that was reported: the reader has its bytes, except where others were reported.
#[derive(Clone, Debug)]
pub struct ReportedMapping {
    pub mapping: Mapping,
    /// Hashes of the pages from the given address on, if contents were sent. None: the reader reads the file.
    sent: Option<(u64, Arc<[u64]>)>,
}

impl ReportedMapping {
    pub fn new(mapping: Mapping, contents: Option<&MappingContents>) -> ReportedMapping {
        let hashes =
            |all: &MappingContents| all.code.chunks(PAGE as usize).map(hash_page).collect();
        ReportedMapping {
            sent: contents.map(|all| (mapping.start, hashes(all))),
            mapping,
        }
    }

    pub fn contents_were_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// Returns the reader's bytes of a page; None if they are not known. `read_now` returns its bytes in memory.
    pub fn reader_bytes_of_page(
        &self,
        page: u64,
        read_now: impl FnOnce() -> Vec<u8>,
    ) -> Option<Vec<u8>> {
        let Some((first, hashes)) = &self.sent else {
            return self.mapping.read_page(page);
        };
        let sent = hashes.get(((page - first) / PAGE) as usize);
        Some(read_now()).filter(|now| sent == Some(&hash_page(now)))
    }

    /// Returns the parts of the mapping outside of the addresses.
    pub fn parts_outside_range(self, from: u64, to: u64) -> impl Iterator<Item = ReportedMapping> {
        let after = self.clone().part_within_range(to, u64::MAX);
        self.part_within_range(0, from).into_iter().chain(after)
    }

    /// Returns the part of the mapping between the addresses.
    pub fn part_within_range(mut self, from: u64, to: u64) -> Option<ReportedMapping> {
        let mapping = &mut self.mapping;
        let (from, to) = (from.max(mapping.start), to.min(mapping.end));
        mapping.offset = mapping
            .offset
            .wrapping_add(from.wrapping_sub(mapping.start));
        (mapping.start, mapping.end) = (from, to);
        (from < to).then_some(self)
    }
}

fn hash_page(page: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(page);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_mapping(line: &str) -> Mapping {
        parse_maps_line(line.as_bytes()).unwrap()
    }

    #[test]
    fn path_with_blanks_and_line_feeds_is_parsed() {
        let mapping = parsed_mapping(
            "55cb36a0f000-55cb36a15000 r-xp 00002000 fe:1b 247282                     /tmp/a b\\012c",
        );
        let expected = Mapping {
            start: 0x55cb_36a0_f000,
            end: 0x55cb_36a1_5000,
            offset: 0x2000,
            protection: 5,
            flags: 2,
            major: 0xfe,
            minor: 0x1b,
            inode: 247_282,
            path: b"/tmp/a b\nc".to_vec(),
        };
        assert_eq!(mapping, expected);
        assert!(mapping.has_stable_bytes() && mapping.is_private_file());
        for bad in ["", "zz", "1000 r-xp 0 0:0 0", "1000-2000 r-xp 0 00 0"] {
            assert_eq!(parse_maps_line(bad.as_bytes()), None);
        }
        assert_eq!(parse_maps_line(b"\xff-\xff"), None);
    }

    #[test]
    fn deleted_file_differs_from_file_named_deleted() {
        let file =
            |end: &str| parsed_mapping(&format!("1000-2000 r-xp 00000000 fe:00 7 /bin/x{end}"));
        assert!(file(" (deleted)").is_deleted_version_of(&file("")));
        assert!(!file(" (deleted)").is_deleted_version_of(&file(" (deleted)")));
        assert!(!file("y").is_deleted_version_of(&file("")));
        let other = Mapping {
            inode: 8,
            ..file("")
        };
        assert!(!file(" (deleted)").is_deleted_version_of(&other));
    }

    #[test]
    fn memory_that_can_change_is_not_stable() {
        for line in [
            "1000-2000 rwxp 00000000 00:00 0 ",
            "1000-2000 r-xp 00000000 00:00 0 ",
            "1000-2000 r-xs 00000000 00:01 7 /memfd:jit",
            "1000-2000 rwxp 00000000 fe:00 7 /bin/x",
        ] {
            assert!(!parsed_mapping(line).has_stable_bytes());
        }
        assert!(
            parsed_mapping("7fff0000-7fff2000 r-xp 00000000 00:00 0    [vdso]").has_stable_bytes()
        );
        let anonymous = parsed_mapping("1000-2000 rwxp 00000000 00:00 0 ");
        assert_eq!(anonymous.path, b"//anon");
        assert!(!anonymous.is_private_file());
        assert!(!parsed_mapping("1000-3000 r--s 00000000 fe:01 7 /a").is_private_file());
    }

    #[test]
    fn unmapping_splits_a_reported_mapping() {
        let mapping = parsed_mapping("1000-5000 r-xp 00002000 fe:00 7 /bin/x");
        let parts = ReportedMapping::new(mapping, None).parts_outside_range(0x2000, 0x3000);
        let parts: Vec<_> = parts
            .map(|ReportedMapping { mapping: m, .. }| (m.start, m.end, m.offset))
            .collect();
        assert_eq!(parts, [(0x1000, 0x2000, 0x2000), (0x3000, 0x5000, 0x4000)]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn changed_file_is_not_readable_later() {
        let here = changed_file_is_not_readable_later as fn() as usize as u64;
        let mappings = read_mappings("self").unwrap();
        let mapping = mappings
            .iter()
            .find(|mapping| mapping.contains_address(here));
        let mapping = mapping.unwrap().clone();
        assert!(mapping.is_executable() && mapping.is_readable_later(i128::MAX));
        assert!(!mapping.is_readable_later(0));
        let other = Mapping {
            inode: mapping.inode + 1,
            ..mapping
        };
        assert!(!other.is_readable_later(i128::MAX));
        assert_eq!(other.read_page(other.start), None);
    }
}
