//! Private mappings of files, from /proc/self/maps, and whether the recorder can read the same files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};

/// A private mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileMapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) inode: u64,
    pub(crate) path: Vec<u8>,
}

impl FileMapping {
    /// Memory without a file.
    pub(crate) fn without_file(start: u64, end: u64) -> FileMapping {
        FileMapping {
            start,
            end,
            offset: 0,
            major: 0,
            minor: 0,
            inode: 0,
            path: b"//anon".to_vec(),
        }
    }

    /// Reads the file's bytes for the page at `page`, and returns how many there are.
    // The file is not kept open: the program may close any descriptor, and its own numbers must not shift.
    pub(crate) fn read_file(&self, page: u64, into: &mut [u8]) -> usize {
        let Ok(file) = File::open(OsStr::from_bytes(&self.path)) else {
            return 0;
        };
        if file.metadata().map_or(0, |found| found.ino()) != self.inode {
            return 0;
        }
        let offset = self.offset + (page - self.start);
        let mut count = 0;
        while count < into.len() {
            match file.read_at(&mut into[count..], offset + count as u64) {
                Ok(0) | Err(_) => break,
                Ok(more) => count += more,
            }
        }
        count
    }

    /// Returns whether the recorder can read the mapped bytes later: it finds the same file by this path, and the file
    /// has not changed since the recording started.
    pub(crate) fn is_readable_by_recorder(&self, recorder: &RecorderView) -> bool {
        let Ok(found) = fs::metadata(OsStr::from_bytes(&self.path)) else {
            return false;
        };
        let changed = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
        found.ino() == self.inode && changed < recorder.started_at && recorder.shares_our_paths()
    }
}

/// The recorder's view of the file system, and its start in nanoseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecorderView {
    pub(crate) started_at: i128,
    /// The result of `filesystem_view` in the recorder.
    pub(crate) view: String,
}

impl RecorderView {
    #[cfg(test)]
    pub(crate) fn current() -> RecorderView {
        RecorderView {
            started_at: i128::MAX,
            view: filesystem_view().unwrap_or_default(),
        }
    }

    fn shares_our_paths(&self) -> bool {
        filesystem_view().is_some_and(|view| view == self.view)
    }
}

/// Returns mount namespace and root directory. Where they are equal, a path means the same file.
fn filesystem_view() -> Option<String> {
    let namespace = fs::read_link("/proc/self/ns/mnt").ok()?;
    let root = fs::metadata("/").ok()?;
    let (device, inode) = (root.dev(), root.ino());
    Some(format!("{} {device} {inode}", namespace.display()))
}

/// Returns the private file mapping that contains a page.
pub(crate) fn find_mapping(page: u64) -> Option<FileMapping> {
    let text = fs::read("/proc/self/maps").ok()?;
    text.split(|&byte| byte == b'\n')
        .filter_map(parse_line)
        .find(|mapped| (mapped.start..mapped.end).contains(&page))
}

/// Returns the address of the first byte of the file that `mapped` shows a later part of.
pub(crate) fn file_start_address(mapped: &FileMapping) -> Option<u64> {
    let text = fs::read("/proc/self/maps").ok()?;
    let of_file = |m: &FileMapping| (m.major, m.minor, m.inode);
    text.split(|&byte| byte == b'\n')
        .filter_map(parse_line)
        .rfind(|m| m.offset == 0 && m.start <= mapped.start && of_file(m) == of_file(mapped))
        .map(|m| m.start)
}

/// Parses a line; None unless it is a private mapping of a file.
fn parse_line(line: &[u8]) -> Option<FileMapping> {
    let text = std::str::from_utf8(line.get(..line.len().min(72))?).unwrap_or_default();
    let mut fields = text.split(' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (rights, offset) = (fields.next()?, hex(fields.next()?)?);
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode: u64 = fields.next()?.parse().ok()?;
    let slash = line.iter().position(|&byte| byte == b'/')?;
    if inode == 0 || !rights.ends_with('p') {
        return None;
    }
    Some(FileMapping {
        start: hex(start)?,
        end: hex(end)?,
        offset,
        major: hex(major)? as u32,
        minor: hex(minor)? as u32,
        inode,
        path: unescape(line.get(slash..)?),
    })
}

/// Decodes `\012`, as which the kernel writes a line feed in a path.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = after;
        } else {
            out.push(first);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_file_mappings_are_parsed() {
        let line = b"1000-3000 r--p 00002000 fe:01 247282                     /tmp/a b\\012c";
        let mapped = parse_line(line).unwrap();
        assert_eq!(
            (mapped.start, mapped.end, mapped.offset),
            (0x1000, 0x3000, 0x2000)
        );
        assert_eq!(mapped.path, b"/tmp/a b\nc");
        assert_eq!(parse_line(b"1000-3000 rw-p 00000000 00:00 0 "), None);
        assert_eq!(parse_line(b"1000-3000 r--s 00000000 fe:01 7 /a"), None);
    }

    #[test]
    fn changed_or_invisible_files_are_not_readable_by_the_recorder() {
        let here =
            changed_or_invisible_files_are_not_readable_by_the_recorder as fn() as usize as u64;
        let mapped = find_mapping(here).unwrap();
        let recorder = RecorderView::current();
        assert!(mapped.is_readable_by_recorder(&recorder));
        let early = RecorderView {
            started_at: 0,
            ..recorder.clone()
        };
        let elsewhere = RecorderView {
            view: "mnt:[1] 2 3".to_string(),
            ..recorder.clone()
        };
        assert!(
            !mapped.is_readable_by_recorder(&early) && !mapped.is_readable_by_recorder(&elsewhere)
        );
        let other = FileMapping {
            inode: mapped.inode + 1,
            ..mapped
        };
        assert!(!other.is_readable_by_recorder(&recorder));
    }
}
