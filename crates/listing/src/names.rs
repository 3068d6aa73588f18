//! What addresses are called, as of a time.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rtit_image::{demangle, Function, Functions};

/// The functions of a file, read when they are first asked for. `None`: the file is no ELF file, or is broken.
pub trait Source: Send + Sync {
    fn functions(&self) -> Option<&Functions>;
}

/// Executable memory from `start` up to `end`, from time `since` up to `until` (TSC).
#[derive(Clone)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    pub since: u64,
    pub until: u64,
    /// The file offset of `start`.
    pub offset: u64,
    /// The file as it was recorded, or another name of the memory.
    pub path: Arc<OsStr>,
    /// The last part of it, to be printed: control characters are escaped.
    pub module: Arc<str>,
    pub source: Option<Arc<dyn Source>>,
}

/// All that was mapped in a process over its life.
#[derive(Default)]
pub struct Names {
    regions: Vec<Region>,
}

/// What is at an address.
#[derive(Clone, Copy)]
pub struct Found<'a> {
    /// Index of the region.
    pub region: u32,
    pub module: &'a str,
    /// Its index in the file's functions, and itself.
    pub function: Option<(u32, &'a Function)>,
    /// Bytes from the function, or from address 0 of the module.
    pub offset: u64,
}

impl Names {
    pub fn new(mut regions: Vec<Region>) -> Names {
        regions.sort_by_key(|each| each.start);
        Names { regions }
    }

    pub fn region(&self, index: u32) -> Option<&Region> {
        self.regions.get(index as usize)
    }
}

/// The names as of a time that moves forward only.
pub struct Cursor {
    names: Arc<Names>,
    now: u64,
    /// Indices of the regions that count now, in order; they are disjoint.
    live: Vec<u32>,
    /// Until then nothing changes.
    next: u64,
}

impl Cursor {
    pub fn new(names: Arc<Names>) -> Cursor {
        let mut cursor = Cursor {
            names,
            now: 0,
            live: Vec::new(),
            next: 0,
        };
        cursor.advance(0);
        cursor
    }

    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Whether names may be others at `time`.
    pub fn changes_by(&self, time: u64) -> bool {
        time >= self.next
    }

    pub fn now(&self) -> u64 {
        self.now
    }

    /// True if names changed.
    pub fn advance(&mut self, time: u64) -> bool {
        self.now = self.now.max(time);
        if !self.changes_by(time) {
            return false;
        }
        let regions = self.names.regions.iter().zip(0u32..);
        let mut live = Vec::new();
        self.next = u64::MAX;
        for (each, index) in regions {
            if each.since <= time && time < each.until {
                live.push(index);
            }
            for border in [each.since, each.until] {
                if border > time {
                    self.next = self.next.min(border);
                }
            }
        }
        let changed = live != self.live;
        self.live = live;
        changed
    }

    /// What is at `ip`; `None` if nothing is mapped there.
    pub fn find(&self, ip: u64) -> Option<Found<'_>> {
        let index = self.live.partition_point(|&index| {
            self.names
                .region(index)
                .is_some_and(|each| each.start <= ip)
        });
        let region = *self.live.get(index.checked_sub(1)?)?;
        let each = self.names.region(region)?;
        if ip >= each.end {
            return None;
        }
        let at = (ip - each.start).wrapping_add(each.offset);
        let functions = each.source.as_ref().and_then(|source| source.functions());
        let function = functions.and_then(|all| all.at(at));
        let offset = match (functions, function) {
            (_, Some((_, function))) => at - function.offset,
            (Some(all), None) => all.address(at),
            (None, None) => at,
        };
        Some(Found {
            region,
            module: &each.module,
            function,
            offset,
        })
    }
}

/// Writes names, and keeps the last one ready: neighbours mostly share it.
#[derive(Default)]
pub(crate) struct Readable {
    raw: String,
    shown: String,
}

impl Readable {
    /// The name as people write it, without control characters.
    pub(crate) fn name(&mut self, raw: &str) -> &str {
        if self.raw != raw {
            raw.clone_into(&mut self.raw);
            self.shown = escaped(&demangle(raw));
        }
        &self.shown
    }

    /// `name+0x12`, `module+0x1234`, or the address.
    pub(crate) fn place(&mut self, out: &mut String, found: Option<Found<'_>>, ip: u64) {
        // writing to a string does not fail
        let _ = match found {
            None => write!(out, "{ip:#x}"),
            Some(found) => match found.function {
                Some((_, function)) => {
                    let name = self.name(&function.name);
                    match found.offset {
                        0 => out.write_str(name),
                        offset => write!(out, "{name}+{offset:#x}"),
                    }
                }
                None if found.module.is_empty() => write!(out, "{:#x}", found.offset),
                None => {
                    write!(out, "{}+{:#x}", found.module, found.offset)
                }
            },
        };
    }
}

/// The last part of a path, to be printed.
pub fn module(path: &OsStr) -> String {
    let mut rest = path
        .as_bytes()
        .rsplit(|&byte| byte == b'/')
        .next()
        .unwrap_or(&[]);
    let mut out = String::new();
    loop {
        let error = match std::str::from_utf8(rest) {
            Ok(text) => {
                out.push_str(&escaped(text));
                return out;
            }
            Err(error) => error,
        };
        let (text, after) = rest.split_at(error.valid_up_to());
        out.push_str(&escaped(std::str::from_utf8(text).unwrap_or("")));
        let (bytes, after) = after.split_at(error.error_len().unwrap_or(after.len()));
        for byte in bytes {
            // writing to a string does not fail
            let _ = write!(out, "\\x{byte:02x}");
        }
        rest = after;
    }
}

/// A name comes from a file, and is to be printed: `\x1b` instead of a character that controls a terminal or turns text
/// round, as `rtit.readable` has it.
pub fn escaped(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for each in name.chars() {
        let number = u32::from(each);
        // writing to a string does not fail
        let _ = match each {
            '\n' | '\r' | '\t' => {
                out.extend(each.escape_default());
                Ok(())
            }
            _ if !each.is_control() && !is_format(number) => {
                out.push(each);
                Ok(())
            }
            _ if number < 0x100 => write!(out, "\\x{number:02x}"),
            _ if number < 0x1_0000 => write!(out, "\\u{number:04x}"),
            _ => write!(out, "\\U{number:08x}"),
        };
    }
    out
}

/// Characters without a shape of their own that change how others are shown: Unicode's categories Cf, Zl and Zp where
/// text may meet them.
fn is_format(number: u32) -> bool {
    matches!(number, 0xad | 0x61c | 0x180e | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff
        | 0xfff9..=0xfffb | 0xe0001..=0xe007f)
}
