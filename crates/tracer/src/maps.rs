//! The executable mappings of a process, from /proc/PID/maps.

use std::fs;

use libc::pid_t;

use crate::event::Mapping;

/// Where the legacy vsyscall page is; its code cannot be read and the kernel emulates it.
pub(crate) const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;

/// The executable mappings of `pid` in address order; None if the process cannot be looked at.
pub(crate) fn executable(pid: pid_t) -> Option<Vec<Mapping>> {
    let text = fs::read(format!("/proc/{pid}/maps")).ok()?;
    Some(
        text.split(|&b| b == b'\n')
            .filter_map(parse_line)
            .filter(|mapping| {
                mapping.protection & libc::PROT_EXEC as u32 != 0 && mapping.start < VSYSCALL
            })
            .collect(),
    )
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    // address perms offset dev inode, blanks, path: the path may have blanks in it
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

impl Mapping {
    /// Whether the bytes are those of the file (or the vDSO) as long as the mapping stands.
    pub(crate) fn is_stable(&self) -> bool {
        let writable = self.protection & libc::PROT_WRITE as u32 != 0;
        let shared = self.flags & libc::MAP_SHARED as u32 != 0;
        let has_file = self.inode != 0 && !self.path.ends_with(b" (deleted)");
        !writable && !shared && (has_file || self.is_vdso())
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
    fn memory_that_can_change_is_not_stable() {
        for line in [
            &b"1000-2000 rwxp 00000000 00:00 0 "[..],
            b"1000-2000 r-xp 00000000 00:00 0 ",
            b"1000-2000 r-xs 00000000 00:01 7 /memfd:jit",
            b"1000-2000 rwxp 00000000 fe:00 7 /bin/x",
            b"1000-2000 r-xp 00000000 fe:00 7 /bin/x (deleted)",
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
        let maps = executable(std::process::id() as pid_t).unwrap();
        assert!(maps
            .iter()
            .any(|mapping| mapping.start <= here && here < mapping.end));
    }
}
