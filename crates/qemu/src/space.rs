//! What a decoder will know of the code of this process, and what it has to be told.
//!
//! All that matters passes through here when QEMU translates it, before it runs. Code bytes are compared with what the
//! decoder has: the mapped file, or bytes that were sent before. A file mapping is told when code of it is first
//! translated. So neither protections nor who wrote what, when, have to be known.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::memory;

const PAGE: u64 = 4096;

/// What the recording has to say before the code can run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Mapped(Mapped),
    Code(u64, Vec<u8>),
}

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

/// Bytes of a page that the decoder has; None where it has none.
type Known = Box<[Option<u8>]>;

#[derive(Default)]
pub(crate) struct Space {
    told: Vec<Mapped>,
    pages: HashMap<u64, Known>,
}

impl Space {
    /// Code at `address` is about to run for the first time: what has to be told before.
    pub(crate) fn translated(&mut self, address: u64, code: &[u8]) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut rest = code;
        let mut at = address;
        while !rest.is_empty() {
            let page = at & !(PAGE - 1);
            let room = (page + PAGE - at) as usize;
            let (here, after) = rest.split_at(rest.len().min(room));
            self.check(page, (at - page) as usize, here, &mut changes);
            at = at.wrapping_add(here.len() as u64);
            rest = after;
        }
        changes
    }

    /// What was mapped there is gone.
    pub(crate) fn forget(&mut self, start: u64, size: u64) {
        let end = start.saturating_add(size);
        let (from, to) = (start & !(PAGE - 1), end);
        self.pages
            .retain(|&page, _| page + PAGE <= from || page >= to);
        let mut told = Vec::new();
        for mapped in self.told.drain(..) {
            if mapped.end <= from || mapped.start >= to {
                told.push(mapped);
                continue;
            }
            if mapped.start < from {
                told.push(Mapped {
                    end: from,
                    ..mapped.clone()
                });
            }
            if mapped.end > to {
                told.push(Mapped {
                    start: to,
                    offset: mapped.offset + (to - mapped.start),
                    ..mapped
                });
            }
        }
        self.told = told;
    }

    fn check(&mut self, page: u64, offset: usize, code: &[u8], changes: &mut Vec<Change>) {
        if !self.pages.contains_key(&page) {
            let known = self.first_look(page, changes);
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
        // The page as it is now, but the code as it was translated.
        let mut now = vec![0u8; PAGE as usize];
        let readable = memory::read(page, &mut now);
        if readable < now.len() {
            // Tell no more than what was translated.
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
        changes.push(Change::Code(
            page + first as u64,
            now[first..=last].to_vec(),
        ));
    }

    /// What the decoder has of a page, once the mapping that it is in has been told.
    fn first_look(&mut self, page: u64, changes: &mut Vec<Change>) -> Known {
        let mut known = vec![None; PAGE as usize].into_boxed_slice();
        let find = |told: &[Mapped]| {
            told.iter()
                .find(|m| (m.start..m.end).contains(&page))
                .cloned()
        };
        let mapped = find(&self.told).or_else(|| {
            let found = self.look_up(page)?;
            self.told.push(found.clone());
            changes.push(Change::Mapped(found.clone()));
            Some(found)
        });
        if let Some(mapped) = mapped {
            let mut bytes = [0u8; PAGE as usize];
            let count = Space::file_bytes(&mapped, page, &mut bytes);
            for (into, byte) in known.iter_mut().zip(&bytes[..count]) {
                *into = Some(*byte);
            }
        }
        known
    }

    /// The private mapping of a file that a page belongs to, less what has been told of others.
    fn look_up(&self, page: u64) -> Option<Mapped> {
        let mut text = Vec::new();
        File::open("/proc/self/maps")
            .ok()?
            .read_to_end(&mut text)
            .ok()?;
        let mut found = text
            .split(|&byte| byte == b'\n')
            .find_map(|line| parse_line(line, page))?;
        for other in &self.told {
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

    // Nothing stays open between two looks: a program may close any file, and numbers must not shift under it.
    fn file_bytes(mapped: &Mapped, page: u64, into: &mut [u8]) -> usize {
        use std::os::unix::fs::MetadataExt;
        let Ok(file) = File::open(PathBuf::from(OsString::from_vec(mapped.path.clone()))) else {
            return 0;
        };
        if file.metadata().map_or(0, |found| found.ino()) != mapped.inode {
            return 0;
        }
        let offset = mapped.offset + (page - mapped.start);
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

/// The path of the program that the kernel would run for `/proc/self/exe` and its like.
pub(crate) fn real_path(path: &[u8]) -> Option<Vec<u8>> {
    let path = PathBuf::from(OsString::from_vec(path.to_vec()));
    Some(fs::canonicalize(path).ok()?.into_os_string().into_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> u64 {
        here as fn() -> u64 as usize as u64
    }

    #[test]
    fn code_of_a_file_needs_only_its_mapping() {
        let mut code = [0u8; 16];
        assert_eq!(memory::read(here(), &mut code), 16);
        let mut space = Space::default();
        let changes = space.translated(here(), &code);
        let [Change::Mapped(mapped)] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert!((mapped.start..mapped.end).contains(&here()));
        assert_eq!(space.translated(here(), &code), []);
    }

    #[test]
    fn code_that_is_not_the_files_is_told() {
        let mut code = [0u8; 16];
        memory::read(here(), &mut code);
        let mut space = Space::default();
        space.translated(here(), &code);
        code[3] ^= 0xff;
        let told = space.translated(here(), &code);
        assert_eq!(told, [Change::Code(here() + 3, vec![code[3]])]);
        space.forget(here(), 1);
        assert_eq!(space.translated(here(), &code).len(), 2);
    }

    #[test]
    fn a_hole_splits_what_was_told() {
        let mapped = Mapped {
            start: 0x1000,
            end: 0x5000,
            offset: 0x2000,
            major: 1,
            minor: 2,
            inode: 3,
            path: b"/x".to_vec(),
        };
        let mut space = Space {
            told: vec![mapped],
            ..Space::default()
        };
        space.forget(0x2000, 0x1000);
        let parts: Vec<_> = space
            .told
            .iter()
            .map(|m| (m.start, m.end, m.offset))
            .collect();
        assert_eq!(parts, [(0x1000, 0x2000, 0x2000), (0x3000, 0x5000, 0x4000)]);
    }

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
