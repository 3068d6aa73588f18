//! Mappings of files, as the kernel lists them.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// A private mapping of an existing file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) inode: u64,
    pub(crate) path: Vec<u8>,
}

impl Mapped {
    /// What the file has for the page at `page`, and how many bytes that is.
    // Nothing stays open between two looks: a program may close any file, and numbers must not shift under it.
    pub(crate) fn bytes(&self, page: u64, into: &mut [u8]) -> usize {
        let Ok(file) = File::open(PathBuf::from(OsString::from_vec(self.path.clone()))) else {
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
}

/// The mapping that a page is in, if it is one.
pub(crate) fn look_up(page: u64) -> Option<Mapped> {
    let mut text = Vec::new();
    File::open("/proc/self/maps")
        .ok()?
        .read_to_end(&mut text)
        .ok()?;
    text.split(|&byte| byte == b'\n')
        .find_map(|line| parse_line(line, page))
}

/// The line's mapping if `page` is in it and a private, existing file is behind it.
fn parse_line(line: &[u8], page: u64) -> Option<Mapped> {
    let text = std::str::from_utf8(line.get(..line.len().min(72))?).unwrap_or_default();
    let mut fields = text.split(' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    if !(start..end).contains(&page) {
        return None;
    }
    let (rights, offset) = (fields.next()?, hex(fields.next()?)?);
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode: u64 = fields.next()?.parse().ok()?;
    let slash = line.iter().position(|&byte| byte == b'/')?;
    let path = line.get(slash..)?;
    if inode == 0 || !rights.ends_with('p') || path.ends_with(b" (deleted)") {
        return None;
    }
    Some(Mapped {
        start,
        end,
        offset,
        major: hex(major)? as u32,
        minor: hex(minor)? as u32,
        inode,
        path: unescape(path),
    })
}

/// The kernel writes a line feed in a path as `\012`.
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
    fn only_private_files_that_exist_count() {
        let line = b"1000-3000 r--p 00002000 fe:01 247282                     /tmp/a b\\012c";
        assert_eq!(parse_line(line, 0x2000).unwrap().path, b"/tmp/a b\nc");
        assert_eq!(parse_line(line, 0x3000), None);
        assert_eq!(
            parse_line(b"1000-3000 rw-p 00000000 00:00 0 ", 0x1000),
            None
        );
        assert_eq!(
            parse_line(b"1000-3000 r--s 00000000 fe:01 7 /a", 0x1000),
            None
        );
        assert_eq!(
            parse_line(b"1000-3000 r--p 00000000 fe:01 7 /a (deleted)", 0x1000),
            None
        );
    }
}
