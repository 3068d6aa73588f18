//! Names of addresses over time.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rtit_image::{demangle, Function, Functions};

/// Returns the functions of a file, which it reads at the first call; `None` if the file is no ELF file or is broken.
pub trait FunctionSource: Send + Sync {
    fn read_functions(&self) -> Option<&Functions>;
}

/// Executable memory from `start` up to `end`, from time `since` up to `until` (TSC).
#[derive(Clone)]
pub struct MappedRegion {
    pub start: u64,
    pub end: u64,
    pub since: u64,
    pub until: u64,
    /// The file offset of `start`.
    pub offset: u64,
    /// The file as it was recorded, or another name of the memory.
    pub path: Arc<OsStr>,
    /// `module_name` of the path.
    pub module_name: Arc<str>,
    pub functions: Option<Arc<dyn FunctionSource>>,
}

/// All mapped regions of a process over its life.
#[derive(Default)]
pub struct ProcessNames {
    regions: Vec<MappedRegion>,
}

/// The function or module at an address.
#[derive(Clone, Copy)]
pub struct NamedAddress<'a> {
    /// Index of the region.
    pub region: u32,
    pub module_name: &'a str,
    /// With its index in the functions of the file.
    pub function: Option<(u32, &'a Function)>,
    /// Bytes from the function, or from address 0 of the module.
    pub offset: u64,
}

impl ProcessNames {
    pub fn new(mut regions: Vec<MappedRegion>) -> ProcessNames {
        regions.sort_by_key(|each| each.start);
        ProcessNames { regions }
    }

    pub fn region_count(&self) -> u32 {
        self.regions.len() as u32
    }

    pub fn region_at_index(&self, index: u32) -> Option<&MappedRegion> {
        self.regions.get(index as usize)
    }
}

/// The names at a time, which only moves forward.
#[derive(Clone)]
pub struct NameCursor {
    names: Arc<ProcessNames>,
    now: u64,
    /// Indices of the regions that are mapped now, in order; they are disjoint.
    mapped: Vec<u32>,
    /// When a region is next mapped or unmapped.
    next_change: u64,
}

impl NameCursor {
    pub fn new(names: Arc<ProcessNames>) -> NameCursor {
        let mut cursor = NameCursor {
            names,
            now: 0,
            mapped: Vec::new(),
            next_change: 0,
        };
        cursor.advance_to_time(0);
        cursor
    }

    pub fn process_names(&self) -> &ProcessNames {
        &self.names
    }

    /// Whether names can differ at `time`.
    pub fn may_names_change_by(&self, time: u64) -> bool {
        time >= self.next_change
    }

    /// Whether the same regions are mapped as in `other`, of the same process.
    pub fn has_same_regions(&self, other: &NameCursor) -> bool {
        self.mapped == other.mapped
    }

    pub fn current_time(&self) -> u64 {
        self.now
    }

    /// Moves to `time`. Returns whether names changed.
    pub fn advance_to_time(&mut self, time: u64) -> bool {
        self.now = self.now.max(time);
        if !self.may_names_change_by(time) {
            return false;
        }
        let regions = self.names.regions.iter().zip(0u32..);
        let mut mapped = Vec::new();
        self.next_change = u64::MAX;
        for (each, index) in regions {
            if each.since <= time && time < each.until {
                mapped.push(index);
            }
            for change in [each.since, each.until] {
                if change > time {
                    self.next_change = self.next_change.min(change);
                }
            }
        }
        let changed = mapped != self.mapped;
        self.mapped = mapped;
        changed
    }

    /// Returns the index of the function with this name in the file of a region.
    pub fn find_function_in_region(&self, region: u32, name: &str) -> Option<u32> {
        let functions = self
            .names
            .region_at_index(region)?
            .functions
            .as_ref()?
            .read_functions()?;
        let found = functions
            .functions_by_offset()
            .iter()
            .position(|each| each.name == name)?;
        Some(found as u32)
    }

    /// Returns the name of an address; `None` if nothing is mapped there.
    pub fn find_name_of_address(&self, ip: u64) -> Option<NamedAddress<'_>> {
        let index = self.mapped.partition_point(|&index| {
            self.names
                .region_at_index(index)
                .is_some_and(|each| each.start <= ip)
        });
        let region = *self.mapped.get(index.checked_sub(1)?)?;
        let each = self.names.region_at_index(region)?;
        if ip >= each.end {
            return None;
        }
        let at = (ip - each.start).wrapping_add(each.offset);
        let functions = each
            .functions
            .as_ref()
            .and_then(|source| source.read_functions());
        let function = functions.and_then(|all| all.function_at_offset(at));
        let offset = match (functions, function) {
            (_, Some((_, function))) => at - function.offset,
            (Some(all), None) => all.address_of_offset(at),
            (None, None) => at,
        };
        Some(NamedAddress {
            region,
            module_name: &each.module_name,
            function,
            offset,
        })
    }
}

/// Demangles and escapes names. It keeps the last one, which the next instruction mostly shares.
#[derive(Default)]
pub(crate) struct NameFormatter {
    raw: String,
    readable: String,
}

impl NameFormatter {
    /// Returns the demangled name without control characters.
    pub(crate) fn demangled_name(&mut self, raw: &str) -> &str {
        if self.raw != raw {
            raw.clone_into(&mut self.raw);
            self.readable = escape_control_characters(&demangle(raw));
        }
        &self.readable
    }

    /// Appends `name+0x12`, `module+0x1234`, or the address.
    pub(crate) fn write_address(
        &mut self,
        out: &mut String,
        found: Option<NamedAddress<'_>>,
        ip: u64,
    ) {
        // writing to a string does not fail
        let _ = match found {
            None => write!(out, "{ip:#x}"),
            Some(found) => match found.function {
                Some((_, function)) => {
                    let name = self.demangled_name(&function.name);
                    match found.offset {
                        0 => out.write_str(name),
                        offset => write!(out, "{name}+{offset:#x}"),
                    }
                }
                None if found.module_name.is_empty() => write!(out, "{:#x}", found.offset),
                None => {
                    write!(out, "{}+{:#x}", found.module_name, found.offset)
                }
            },
        };
    }
}

/// Returns the last part of a path, with escapes for control characters and invalid UTF-8.
pub fn module_name(path: &OsStr) -> String {
    let mut rest = path
        .as_bytes()
        .rsplit(|&byte| byte == b'/')
        .next()
        .unwrap_or(&[]);
    let mut out = String::new();
    loop {
        let error = match std::str::from_utf8(rest) {
            Ok(text) => {
                out.push_str(&escape_control_characters(text));
                return out;
            }
            Err(error) => error,
        };
        let (text, after) = rest.split_at(error.valid_up_to());
        out.push_str(&escape_control_characters(
            std::str::from_utf8(text).unwrap_or(""),
        ));
        let (bytes, after) = after.split_at(error.error_len().unwrap_or(after.len()));
        for byte in bytes {
            // writing to a string does not fail
            let _ = write!(out, "\\x{byte:02x}");
        }
        rest = after;
    }
}

/// Returns a name with escapes such as `\x1b` for characters that control a terminal or the direction of text, as
/// `rtit.text_escaping` does.
fn escape_control_characters(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for each in name.chars() {
        let number = u32::from(each);
        // writing to a string does not fail
        let _ = match each {
            '\n' | '\r' | '\t' => {
                out.extend(each.escape_default());
                Ok(())
            }
            _ if !each.is_control() && !is_format_character(number) => {
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

/// Whether a character is invisible and changes how others are shown: Unicode's categories Cf, Zl and Zp.
fn is_format_character(number: u32) -> bool {
    matches!(number, 0xad | 0x61c | 0x180e | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff
        | 0xfff9..=0xfffb | 0xe0001..=0xe007f)
}
