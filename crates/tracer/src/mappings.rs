//! The mappings of a process, from /proc/PID/maps.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use libc::pid_t;

use crate::event::Mapping;

/// The legacy vsyscall page. Its code cannot be read; the kernel emulates it.
pub(crate) const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;

/// The kernel appends this to the path of a deleted file. A file may have such a name as well.
const DELETED: &[u8] = b" (deleted)";

/// Returns the executable mappings of `pid` in address order; None if they cannot be read.
pub(crate) fn executable_mappings(pid: pid_t) -> Option<Vec<Mapping>> {
    let mut mappings = all_mappings(pid)?;
    mappings.retain(|mapping| {
        mapping.protection & libc::PROT_EXEC as u32 != 0 && mapping.start < VSYSCALL
    });
    Some(mappings)
}

/// Returns the address of the first byte of the file that `mapping` shows a later part of.
pub(crate) fn file_start_address(pid: pid_t, mapping: &Mapping) -> Option<u64> {
    let of_file = |m: &Mapping| (m.major, m.minor, m.inode);
    let starts = |m: &Mapping| m.offset == 0 && m.start <= mapping.start;
    let mappings = all_mappings(pid)?;
    let mut found = mappings
        .iter()
        .filter(|m| starts(m) && of_file(m) == of_file(mapping));
    found.next_back().map(|m| m.start)
}

fn all_mappings(pid: pid_t) -> Option<Vec<Mapping>> {
    let text = fs::read(format!("/proc/{pid}/maps")).ok()?;
    Some(text.split(|&b| b == b'\n').filter_map(parse_line).collect())
}

/// Returns whether paths mean the same files to `tid` as to the tracer: equal mount namespace and root directory.
pub(crate) fn shares_our_paths(tid: pid_t) -> bool {
    let view = |who: &str| {
        let namespace = fs::read_link(format!("/proc/{who}/ns/mnt")).ok()?;
        let root = fs::metadata(format!("/proc/{who}/root/")).ok()?;
        Some((namespace, root.dev(), root.ino()))
    };
    let theirs = view(&tid.to_string());
    theirs.is_some() && theirs == view("self")
}

/// Returns when the first recording of this process began, less the lateness of file-system clocks.
fn recording_start() -> SystemTime {
    static BEGAN: OnceLock<SystemTime> = OnceLock::new();
    const LATE: Duration = Duration::from_secs(2);
    *BEGAN.get_or_init(|| {
        let now = SystemTime::now();
        now.checked_sub(LATE).unwrap_or(now)
    })
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    // address perms offset dev inode, blanks, path: the path may contain blanks
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
    let blanks = rest.iter().take_while(|&&b| b == b' ').count();
    let path = unescape(&rest[blanks..]);
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut protection = 0;
    let mut flags = libc::MAP_PRIVATE as u32;
    for letter in permissions.bytes() {
        match letter {
            b'r' => protection |= libc::PROT_READ as u32,
            b'w' => protection |= libc::PROT_WRITE as u32,
            b'x' => protection |= libc::PROT_EXEC as u32,
            b's' => flags = libc::MAP_SHARED as u32,
            _ => {}
        }
    }
    if inode == 0 {
        flags |= libc::MAP_ANONYMOUS as u32;
    }
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        protection,
        flags,
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

impl Mapping {
    /// Returns whether the bytes are those of the file (or vDSO) as long as the mapping exists.
    pub(crate) fn is_stable(&self) -> bool {
        let writable = self.protection & libc::PROT_WRITE as u32 != 0;
        let shared = self.flags & libc::MAP_SHARED as u32 != 0;
        !writable && !shared && (self.inode != 0 || self.is_vdso())
    }

    /// Returns whether the mapped bytes can be read from the file later: the path leads to the mapped file, which has
    /// not changed since the recording began. The process must share the tracer's paths.
    pub(crate) fn is_readable_later(&self) -> bool {
        let Ok(found) = fs::metadata(OsStr::from_bytes(&self.path)) else {
            return false;
        };
        let began = recording_start().duration_since(SystemTime::UNIX_EPOCH);
        let began = began.map_or(0, |since| since.as_nanos() as i128);
        let changed = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
        found.ino() == self.inode && changed < began
    }

    /// Fills `into` with the file's bytes from `offset` on, and zeros after its end; false if it cannot be read.
    pub(crate) fn read_file(&self, offset: u64, into: &mut [u8]) -> bool {
        let Ok(file) = fs::File::open(OsStr::from_bytes(&self.path)) else {
            return false;
        };
        let mut done = 0;
        loop {
            match file.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => return done > 0,
                Ok(more) => done += more,
                Err(_) => return false,
            }
        }
    }

    /// Returns whether this is `old` after its file was deleted.
    pub(crate) fn is_deleted(&self, old: &Mapping) -> bool {
        let former = self.path.strip_suffix(DELETED);
        former == Some(&old.path)
            && *self
                == Mapping {
                    path: self.path.clone(),
                    ..old.clone()
                }
    }

    pub(crate) fn is_vdso(&self) -> bool {
        self.path == b"[vdso]"
    }

    pub(crate) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_blanks_and_line_feeds_in_its_name() {
        let line = b"55cb36a0f000-55cb36a15000 r-xp 00002000 fe:1b 247282                     /tmp/a b\\012c";
        let mapping = parse_line(line).unwrap();
        assert_eq!(
            (mapping.start, mapping.end),
            (0x55cb_36a0_f000, 0x55cb_36a1_5000)
        );
        assert_eq!(
            (mapping.offset, mapping.protection, mapping.flags),
            (0x2000, 5, 2)
        );
        assert_eq!(
            (mapping.major, mapping.minor, mapping.inode),
            (0xfe, 0x1b, 247_282)
        );
        assert_eq!(mapping.path, b"/tmp/a b\nc");
        assert!(mapping.is_stable());
    }

    #[test]
    fn a_file_that_loses_its_name_and_one_that_is_called_so() {
        let line = |end: &str| format!("1000-2000 r-xp 00000000 fe:00 7 /bin/x{end}");
        let parsed = |end: &str| parse_line(line(end).as_bytes()).unwrap();
        assert!(parsed(" (deleted)").is_deleted(&parsed("")));
        assert!(!parsed(" (deleted)").is_deleted(&parsed(" (deleted)")));
        assert!(!parsed("y").is_deleted(&parsed("")));
        let other = Mapping {
            inode: 8,
            ..parsed("")
        };
        assert!(!parsed(" (deleted)").is_deleted(&other));
    }

    #[test]
    fn memory_that_can_change_is_not_stable() {
        for line in [
            &b"1000-2000 rwxp 00000000 00:00 0 "[..],
            b"1000-2000 r-xp 00000000 00:00 0 ",
            b"1000-2000 r-xs 00000000 00:01 7 /memfd:jit",
            b"1000-2000 rwxp 00000000 fe:00 7 /bin/x",
        ] {
            assert!(!parse_line(line).unwrap().is_stable());
        }
        let vdso = parse_line(b"7fff0000-7fff2000 r-xp 00000000 00:00 0    [vdso]").unwrap();
        assert!(vdso.is_stable());
        assert_eq!(
            parse_line(b"1000-2000 rwxp 00000000 00:00 0 ")
                .unwrap()
                .path,
            b"//anon"
        );
    }

    #[test]
    fn bad_lines_are_left_out() {
        for line in [
            &b""[..],
            b"zz",
            b"1000 r-xp 0 0:0 0",
            b"1000-2000 r-xp 0 00 0",
            b"\xff-\xff",
        ] {
            assert_eq!(parse_line(line), None);
        }
    }

    #[test]
    fn our_own_code_is_found() {
        let here = our_own_code_is_found as fn() as usize as u64;
        let maps = executable_mappings(std::process::id() as pid_t).unwrap();
        assert!(maps
            .iter()
            .any(|mapping| mapping.start <= here && here < mapping.end));
    }
}
