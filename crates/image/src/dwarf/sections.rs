//! The sections of an ELF file that DWARF is in.

use std::borrow::Cow;
use std::io::Read;

use gimli::{Dwarf, DwarfSections, EndianSlice, Error, RunTimeEndian, SectionId};
use object::read::ReadRef;
use object::{CompressedData, CompressionFormat, Object, ObjectSection};
use ruzstd::decoding::StreamingDecoder;

use super::work::{Slice, Work};

/// Bytes that the compressed sections of one file may unpack to, together, or as many as the file has.
const MOST: u64 = 1 << 27;
const NEEDED: [SectionId; 9] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// Asks of the DWARF of an ELF file, with what may be done. `None` if it is none; and whether all its sections could be
/// read: they may be compressed (zlib, zstd), and those that do not unpack to what they say, or to too much, count as
/// empty.
pub(crate) fn with_dwarf<'d, R: ReadRef<'d>, T>(
    data: R,
    gives_up: &dyn Fn() -> bool,
    ask: impl FnOnce(&Dwarf<Slice<'_>>, &mut Work<'_>) -> T,
) -> Option<(T, bool)> {
    let length = data.len().ok()?;
    let file = object::File::parse(data).ok()?;
    let endian = match file.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    };
    // each section is read by itself: they could share what they hold
    let (mut stored, mut left, mut bytes, mut whole) = (length, MOST.max(length), 0, true);
    let sections = DwarfSections::load(|id| -> Result<Cow<'_, [u8]>, Error> {
        let section = file.section_by_name(id.name());
        let Some(section) = section.filter(|_| NEEDED.contains(&id)) else {
            return Ok(Cow::default());
        };
        let (_, size) = section.file_range().unwrap_or_default();
        let plain = stored.checked_sub(size).and_then(|rest| {
            stored = rest;
            unpacked(section.compressed_data().ok()?, &mut left)
        });
        whole &= plain.is_some();
        let plain = plain.unwrap_or_default();
        bytes += plain.len() as u64;
        Ok(plain)
    });
    let sections = sections.ok()?;
    let dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, endian));
    Some((ask(&dwarf, &mut Work::of(bytes, gives_up)), whole))
}

fn unpacked<'a>(stored: CompressedData<'a>, left: &mut u64) -> Option<Cow<'a, [u8]>> {
    if stored.format == CompressionFormat::None {
        return Some(Cow::Borrowed(stored.data));
    }
    let size = stored.uncompressed_size;
    *left = left.checked_sub(size)?;
    if stored.format != CompressionFormat::Zstandard {
        return stored.decompress().ok();
    }
    // What a frame gives has no bound in `decompress`.
    let mut plain = Vec::new();
    plain.try_reserve(usize::try_from(size).ok()? + 1).ok()?;
    let frame = StreamingDecoder::new(stored.data).ok()?;
    frame.take(size + 1).read_to_end(&mut plain).ok()?;
    (plain.len() as u64 == size).then_some(Cow::Owned(plain))
}
