//! Which line of source an instruction was made from, by DWARF.

use std::borrow::Cow;
use std::io::Read;

use addr2line::gimli::{DwarfSections, EndianSlice, Error, RunTimeEndian};
use addr2line::Context;
use object::{CompressedData, CompressionFormat, Object, ObjectSection};
use ruzstd::decoding::StreamingDecoder;

/// Bytes that the compressed sections of one file may unpack to, together.
const MOST: u64 = 1 << 28;

/// Source file and line of the instruction at `address`, as the file numbers addresses; `data` is the whole ELF file.
/// `None` if it does not say. Sections may be compressed (zlib, zstd); those that do not unpack to what they say, or
/// to more than `MOST`, count as empty.
pub fn source_line(data: &[u8], address: u64) -> Option<(String, u32)> {
    let file = object::File::parse(data).ok()?;
    let endian = match file.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    };
    let mut left = MOST;
    let sections = DwarfSections::load(|id| -> Result<Cow<'_, [u8]>, Error> {
        let section = file.section_by_name(id.name());
        let stored = section.and_then(|section| section.compressed_data().ok());
        let plain = stored.and_then(|stored| unpacked(stored, &mut left));
        Ok(plain.unwrap_or_default())
    });
    let sections = sections.ok()?;
    let dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, endian));
    let context = Context::from_dwarf(dwarf).ok()?;
    let place = context.find_location(address).ok()??;
    Some((place.file?.to_owned(), place.line?))
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
    let frame = StreamingDecoder::new(stored.data).ok()?;
    frame.take(size + 1).read_to_end(&mut plain).ok()?;
    (plain.len() as u64 == size).then_some(Cow::Owned(plain))
}
