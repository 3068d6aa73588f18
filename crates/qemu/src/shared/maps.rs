//! Mappings of files, as the kernel lists them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};

/// A private mapping of a file.
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
    /// Memory of which no file has the bytes.
    pub(crate) fn without_file(start: u64, end: u64) -> Mapped {
        Mapped {
            start,
            end,
            offset: 0,
            major: 0,
            minor: 0,
            inode: 0,
            path: b"//anon".to_vec(),
        }
    }

    /// What the file has for the page at `page`, and how many bytes that is.
    // Nothing stays open between two looks: a program may close any file, and numbers must not shift under it.
    pub(crate) fn bytes(&self, page: u64, into: &mut [u8]) -> usize {
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

    /// Whether the recorder, too, finds the mapped file by its path, not changed since the recording began: it can read
    /// what is mapped later.
    pub(crate) fn is_settled(&self, recorder: &Recorder) -> bool {
        let Ok(found) = fs::metadata(OsStr::from_bytes(&self.path)) else {
            return false;
        };
        let changed = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
        found.ino() == self.inode && changed < recorder.began && recorder.shares_our_paths()
    }
}

/// What the recorder's paths mean, and since when (nanoseconds since 1970) it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorder {
    pub(crate) began: i128,
    /// As `view` gives it.
    pub(crate) view: String,
}

impl Recorder {
    #[cfg(test)]
    pub(crate) fn of_now() -> Recorder {
        Recorder {
            began: i128::MAX,
            view: view().unwrap_or_default(),
        }
    }

    fn shares_our_paths(&self) -> bool {
        view().is_some_and(|view| view == self.view)
    }
}

/// Mount namespace and root directory: where they are the same a path means the same file.
fn view() -> Option<String> {
    let namespace = fs::read_link("/proc/self/ns/mnt").ok()?;
    let root = fs::metadata("/").ok()?;
    let (device, inode) = (root.dev(), root.ino());
    Some(format!("{} {device} {inode}", namespace.display()))
}

/// The mapping that a page is in, if it is one.
pub(crate) fn look_up(page: u64) -> Option<Mapped> {
    let text = fs::read("/proc/self/maps").ok()?;
    text.split(|&byte| byte == b'\n')
        .filter_map(parse_line)
        .find(|mapped| (mapped.start..mapped.end).contains(&page))
}

/// Where the first byte of the file is that `mapped` shows a later part of.
pub(crate) fn start_of_file(mapped: &Mapped) -> Option<u64> {
    let text = fs::read("/proc/self/maps").ok()?;
    let of_file = |m: &Mapped| (m.major, m.minor, m.inode);
    text.split(|&byte| byte == b'\n')
        .filter_map(parse_line)
        .rfind(|m| m.offset == 0 && m.start <= mapped.start && of_file(m) == of_file(mapped))
        .map(|m| m.start)
}

/// The line's mapping if a file is behind it and it is private.
fn parse_line(line: &[u8]) -> Option<Mapped> {
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
    Some(Mapped {
        start: hex(start)?,
        end: hex(end)?,
        offset,
        major: hex(major)? as u32,
        minor: hex(minor)? as u32,
        inode,
        path: unescape(line.get(slash..)?),
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
    fn only_private_mappings_of_files_count() {
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
    fn files_that_are_not_settled() {
        let here = files_that_are_not_settled as fn() as usize as u64;
        let mapped = look_up(here).unwrap();
        let recorder = Recorder::of_now();
        assert!(mapped.is_settled(&recorder));
        let early = Recorder {
            began: 0,
            ..recorder.clone()
        };
        let elsewhere = Recorder {
            view: "mnt:[1] 2 3".to_string(),
            ..recorder.clone()
        };
        assert!(!mapped.is_settled(&early) && !mapped.is_settled(&elsewhere));
        let other = Mapped {
            inode: mapped.inode + 1,
            ..mapped
        };
        assert!(!other.is_settled(&recorder));
    }
}
