//! Headers, sections, symbol tables and strings of an ELF file.

use object::elf;
use object::read::elf::{FileHeader, SectionHeader, SectionTable};
use object::read::{ReadRef, SectionIndex};
use object::Endianness;

use crate::budget::Budget;
use crate::error::ElfError;

/// Those behind them are not looked at: each can have a name of its own, and a linked program has a few.
pub(crate) const MOST_SECTIONS: usize = 1 << 14;

/// A longer name is left out. Symbols may share one string: without limits a small file could ask for any memory.
const MAX_NAME: usize = 1 << 14;
/// A converter of `object`'s errors: `what` was being read at `offset`.
pub(crate) fn bad(what: &'static str, offset: u64) -> impl Fn(object::Error) -> ElfError {
    move |error| ElfError::Malformed {
        what,
        offset,
        reason: error.to_string(),
    }
}

/// The header and its byte order.
pub(crate) fn header<'data, E, R>(data: R) -> Result<(&'data E, Endianness), ElfError>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let header = E::parse(data).map_err(bad("header", 0))?;
    let endian = header.endian().map_err(bad("header", 0))?;
    Ok((header, endian))
}

/// The section headers; none at all is not an error.
pub(crate) fn sections<'data, E, R>(
    header: &E,
    endian: Endianness,
    data: R,
) -> Result<SectionTable<'data, E, R>, ElfError>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let offset: u64 = header.e_shoff(endian).into();
    header
        .sections(endian, data)
        .map_err(bad("section headers", offset))
}

/// Where a section lies in the file, and its size.
pub(crate) fn place<E>(section: &E::SectionHeader, endian: Endianness) -> (u64, u64)
where
    E: FileHeader<Endian = Endianness>,
{
    (
        section.sh_offset(endian).into(),
        section.sh_size(endian).into(),
    )
}

/// The first section with this name.
pub(crate) fn named<'data, E, R>(
    table: &SectionTable<'data, E, R>,
    endian: Endianness,
    title: &[u8],
) -> Option<&'data E::SectionHeader>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let mut sections = table.iter().take(MOST_SECTIONS);
    sections.find(|section| table.section_name(endian, section) == Ok(title))
}

/// The entries of a symbol table.
pub(crate) fn entries<'data, E, R>(
    section: &E::SectionHeader,
    endian: Endianness,
    data: R,
) -> Result<&'data [E::Sym], ElfError>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let offset: u64 = section.sh_offset(endian).into();
    section
        .data_as_array(endian, data)
        .map_err(bad("symbol table", offset))
}

/// The string table that `section` is linked to, whole: names are cut out of it here, since a read
/// for each name would be slow on a file.
pub(crate) fn strings<'data, E, R>(
    section: &E::SectionHeader,
    endian: Endianness,
    table: &SectionTable<'data, E, R>,
    data: R,
    budget: &mut Budget,
) -> &'data [u8]
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let strings = table.section(SectionIndex(section.sh_link(endian) as usize));
    let strings = strings
        .ok()
        .filter(|strings| strings.sh_type(endian) == elf::SHT_STRTAB)
        .filter(|strings| budget.hold(place::<E>(strings, endian)));
    strings
        .and_then(|strings| strings.data(endian, data).ok())
        .unwrap_or(&[])
}

/// The name at `start` of a string table; `None` if it is empty or not within the table.
pub(crate) fn name(strings: &[u8], start: u32) -> Option<String> {
    let rest = strings.get(start as usize..)?;
    let end = rest.iter().take(MAX_NAME).position(|byte| *byte == 0)?;
    let name = rest.get(..end).filter(|name| !name.is_empty())?;
    Some(String::from_utf8_lossy(name).into_owned())
}
