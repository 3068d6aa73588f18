//! Which line of source an instruction was made from, by DWARF.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read;

use rtit_memory::{headroom, look, Grow, MakeRoom};

use addr2line::gimli::{DwarfSections, EndianSlice, Error, RunTimeEndian};
use addr2line::Context;
use object::read::ReadRef;
use object::{CompressedData, CompressionFormat, Object, ObjectSection};
use ruzstd::decoding::StreamingDecoder;

/// Bytes that the compressed sections of one file may unpack to, together.
const MOST: u64 = 1 << 28;

/// Source file and line of the instruction at `address`, as the file numbers addresses; `data` is the ELF file.
/// `None` if it does not say. Sections may be compressed (zlib, zstd); those that do not unpack to what they say, or
/// to more than `MOST`, count as empty.
pub fn source_line<'d, R: ReadRef<'d>>(data: R, address: u64) -> Option<(String, u32)> {
    with_context(data, |context, _| {
        let place = context.find_location(address).ok()??;
        Some((place.file?.to_owned(), place.line?))
    })
}

/// The lines of a file's code: stretches of addresses with the line that each was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceLines {
    pub files: Vec<String>,
    /// In the order of the addresses, not overlapping.
    pub stretches: Vec<LineStretch>,
}

/// The addresses from `start` up to `end` were made from a line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineStretch {
    pub start: u64,
    pub end: u64,
    /// Index into the files.
    pub file: u32,
    pub line: u32,
}

/// The lines of all addresses in `windows`, from the first up to the second of each, that the file tells of, in stretches
/// that may reach beyond; addresses as the file numbers them. As `source_line` otherwise. A file that tells of more lines
/// than its tables have bytes is broken, and tells of none.
pub fn source_lines<'d, R: ReadRef<'d>>(data: R, windows: &[(u64, u64)]) -> Option<SourceLines> {
    with_context(data, |context, bytes| {
        let mut numbers: HashMap<String, u32> = HashMap::new();
        let mut found = SourceLines::default();
        let mut left = bytes.saturating_add(windows.len() as u64);
        for &(low, high) in windows {
            for (start, size, place) in context.find_location_range(low, high).ok()? {
                left = left.checked_sub(1)?;
                let (Some(file), Some(line)) = (place.file, place.line) else {
                    continue;
                };
                let known = numbers.get(file).copied();
                let file = known.unwrap_or_else(|| {
                    let number = found.files.len() as u32;
                    look();
                    numbers.room(1);
                    numbers.insert(file.to_owned(), number);
                    found.files.put(file.to_owned());
                    number
                });
                let end = start.saturating_add(size);
                if line != 0 && start < end {
                    found.stretches.put(LineStretch {
                        start,
                        end,
                        file,
                        line,
                    });
                }
            }
        }
        found.stretches.sort_unstable();
        found.stretches.dedup();
        disjoint(&mut found.stretches);
        Some(found)
    })
}

/// Cuts stretches where the next begins: units may overlap in a broken file.
fn disjoint(stretches: &mut Vec<LineStretch>) {
    let mut next = u64::MAX;
    for each in stretches.iter_mut().rev() {
        each.end = each.end.min(next);
        next = each.start;
    }
    stretches.retain(|each| each.start < each.end);
}

type Dwarf<'a> = Context<EndianSlice<'a, RunTimeEndian>>;

/// Asks of the DWARF of a file, and with how many bytes all its tables have.
fn with_context<'d, R: ReadRef<'d>, T>(
    data: R,
    ask: impl FnOnce(&Dwarf<'_>, u64) -> Option<T>,
) -> Option<T> {
    // those who read it know no error for it
    let length = data.len().ok()?;
    headroom(usize::try_from(length).ok()?.saturating_mul(2));
    let file = object::File::parse(data).ok()?;
    let endian = match file.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    };
    // each section is read by itself: they could share what they hold
    let (mut stored, mut left, mut bytes) = (length, MOST, 0);
    let sections = DwarfSections::load(|id| -> Result<Cow<'_, [u8]>, Error> {
        let section = file.section_by_name(id.name());
        let held = section.filter(|section| {
            let (_, size) = section.file_range().unwrap_or_default();
            let rest = stored.checked_sub(size);
            stored = rest.unwrap_or(stored);
            rest.is_some()
        });
        let packed = held.and_then(|section| section.compressed_data().ok());
        let plain = packed.and_then(|packed| unpacked(packed, &mut left));
        let plain = plain.unwrap_or_default();
        bytes += plain.len() as u64;
        Ok(plain)
    });
    let sections = sections.ok()?;
    let dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, endian));
    let context = Context::from_dwarf(dwarf).ok()?;
    ask(&context, bytes)
}

fn unpacked<'a>(stored: CompressedData<'a>, left: &mut u64) -> Option<Cow<'a, [u8]>> {
    if stored.format == CompressionFormat::None {
        return Some(Cow::Borrowed(stored.data));
    }
    let size = stored.uncompressed_size;
    *left = left.checked_sub(size)?;
    if stored.format != CompressionFormat::Zstandard {
        headroom(usize::try_from(size).ok()?);
        return stored.decompress().ok();
    }
    // What a frame gives has no bound in `decompress`.
    let mut plain = Vec::new();
    plain.room(usize::try_from(size).ok()? + 1);
    let frame = StreamingDecoder::new(stored.data).ok()?;
    frame.take(size + 1).read_to_end(&mut plain).ok()?;
    (plain.len() as u64 == size).then_some(Cow::Owned(plain))
}
