//! ELF files, as far as code bytes and their names need them.
//!
//! All functions take any `object::ReadRef`: a slice, or a cache over an open file that reads only
//! the tables in question. Sizes found in a file are checked against its length before use.

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::read::ReadRef;
use object::Endianness;

use crate::error::ElfError;
use crate::symbol::Symbol;
use crate::symbols;
use crate::tables::{bad, header, named, sections, MOST_SECTIONS};

/// Reads an open file by need: pass a reference to it as the data.
pub use object::read::ReadCache;

/// A loadable piece (PT_LOAD): `file_size` bytes at `offset` of the file appear at `address`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    pub address: u64,
    pub file_size: u64,
    pub memory_size: u64,
    /// PF_X 1, PF_W 2, PF_R 4.
    pub flags: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    /// 32 or 64: the class, which may differ from what the machine can do (x32).
    pub bits: u8,
    /// e_type: 2 executable, 3 shared object or position-independent executable, 4 core.
    pub kind: u16,
    /// e_machine: 3 is i386, 62 x86-64.
    pub machine: u16,
    pub entry: u64,
    /// The GNU build id note, if there is one.
    pub build_id: Option<Vec<u8>>,
    /// .gnu_debuglink: name of the separate debug file, and the CRC-32 over it.
    pub debug_link: Option<(Vec<u8>, u32)>,
    pub segments: Vec<Segment>,
}

/// Reads header, program headers and build id.
pub fn read<'data, R: ReadRef<'data>>(data: R) -> Result<Elf, ElfError> {
    match class(data)? {
        Class::Bits32 => headers::<elf::FileHeader32<Endianness>, R>(data, 32),
        Class::Bits64 => headers::<elf::FileHeader64<Endianness>, R>(data, 64),
    }
}

/// Reads the code symbols of `.symtab` and `.dynsym`, and names for the stubs of `.plt` (as
/// `name@plt`), sorted by value; of several at one value the best name for people is first. A file
/// without section headers has none.
pub fn symbols<'data, R: ReadRef<'data>>(data: R) -> Result<Vec<Symbol>, ElfError> {
    match class(data)? {
        Class::Bits32 => symbols::read::<elf::FileHeader32<Endianness>, R>(data),
        Class::Bits64 => symbols::read::<elf::FileHeader64<Endianness>, R>(data),
    }
}

/// Notes of more bytes, or in more places, are not searched for a build id.
const MAX_NOTES: u64 = 1 << 16;
const MOST_NOTES: usize = 32;

enum Class {
    Bits32,
    Bits64,
}

fn class<'data, R: ReadRef<'data>>(data: R) -> Result<Class, ElfError> {
    let ident = data.read_bytes_at(0, 5).unwrap_or(&[]);
    match ident {
        [0x7f, b'E', b'L', b'F', 1] => Ok(Class::Bits32),
        [0x7f, b'E', b'L', b'F', 2] => Ok(Class::Bits64),
        _ => {
            let mut magic = [0; 4];
            magic
                .iter_mut()
                .zip(ident)
                .for_each(|(to, from)| *to = *from);
            Err(ElfError::NotElf {
                magic: u32::from_le_bytes(magic),
            })
        }
    }
}

fn headers<'data, E, R>(data: R, bits: u8) -> Result<Elf, ElfError>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let (header, endian) = header::<E, R>(data)?;
    let offset: u64 = header.e_phoff(endian).into();
    let program = header
        .program_headers(endian, data)
        .map_err(bad("program headers", offset))?;
    let segments = program
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_LOAD);
    let segments = segments
        .map(|segment| Segment {
            offset: segment.p_offset(endian).into(),
            address: segment.p_vaddr(endian).into(),
            file_size: segment.p_filesz(endian).into(),
            memory_size: segment.p_memsz(endian).into(),
            flags: segment.p_flags(endian),
        })
        .collect();
    Ok(Elf {
        bits,
        kind: header.e_type(endian),
        machine: header.e_machine(endian),
        entry: header.e_entry(endian).into(),
        build_id: build_id(header, endian, program, data),
        debug_link: debug_link(header, endian, data),
        segments,
    })
}

/// The first GNU build id among the PT_NOTE segments, else among the note sections (an object file,
/// a detached debug file). Notes that cannot be read have no build id in them.
fn build_id<'data, E, R>(
    header: &E,
    endian: Endianness,
    program: &'data [E::ProgramHeader],
    data: R,
) -> Option<Vec<u8>>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    // Each range that is read stays in memory: a few small ones are enough.
    let in_segments = program
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_NOTE)
        .filter(|segment| segment.p_filesz(endian).into() <= MAX_NOTES)
        .take(MOST_NOTES)
        .filter_map(|segment| segment.notes(endian, data).ok()?);
    let sections = sections(header, endian, data).unwrap_or_default();
    let in_sections = sections
        .iter()
        .take(MOST_SECTIONS)
        .filter(|section| section.sh_type(endian) == elf::SHT_NOTE)
        .filter(|section| section.sh_size(endian).into() <= MAX_NOTES)
        .take(MOST_NOTES)
        .filter_map(|section| section.notes(endian, data).ok()?);
    for mut notes in in_segments.chain(in_sections) {
        while let Ok(Some(note)) = notes.next() {
            if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
                return Some(note.desc().to_vec());
            }
        }
    }
    None
}

/// What `.gnu_debuglink` says: a name that ends in a zero byte, padding to four bytes, a CRC. A broken one is none.
fn debug_link<'data, E, R>(header: &E, endian: Endianness, data: R) -> Option<(Vec<u8>, u32)>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let sections = sections(header, endian, data).ok()?;
    let section = named(&sections, endian, b".gnu_debuglink")?;
    if section.sh_size(endian).into() > MAX_NOTES {
        return None;
    }
    let bytes = section.data(endian, data).ok()?;
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let name = bytes.get(..end).filter(|name| !name.is_empty())?;
    let crc = bytes.get((end + 4) & !3..)?.get(..4)?;
    let crc = <[u8; 4]>::try_from(crc).ok()?;
    let crc = match endian {
        Endianness::Little => u32::from_le_bytes(crc),
        Endianness::Big => u32::from_be_bytes(crc),
    };
    Some((name.to_vec(), crc))
}
