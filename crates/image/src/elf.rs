//! Headers of ELF files.
//!
//! All functions take any `object::ReadRef`: a slice, or a cache over an open file that reads only
//! the tables in question. Sizes found in a file are checked against its length before use.

use std::fmt;

use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, SectionTable};
use object::read::ReadRef;
use object::Endianness;

use crate::frames::{read_frames, FrameRange};
use crate::symbols::{read_symbol_values, read_symbols, Symbol, MAX_SECTIONS};

/// Reads an open file by need: pass a reference to it as the data.
pub use object::read::ReadCache;

/// A loadable piece (PT_LOAD): `file_size` bytes at `offset` of the file appear at `address`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadSegment {
    pub offset: u64,
    pub address: u64,
    pub file_size: u64,
    pub memory_size: u64,
    /// PF_X 1, PF_W 2, PF_R 4.
    pub flags: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElfHeaders {
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
    pub segments: Vec<LoadSegment>,
    /// Address of the program headers, 0 if they are not loaded, and their number.
    pub program_headers: (u64, usize),
    /// Address of the dynamic section, 0 without one.
    pub dynamic: u64,
    /// The file is a program, also a position-independent one, and no library.
    pub is_program: bool,
    /// The file names a loader (PT_INTERP).
    pub has_loader: bool,
}

/// Returns header, program headers and build id.
pub fn read_elf_headers<'data, R: ReadRef<'data>>(data: R) -> Result<ElfHeaders, ElfError> {
    match elf_class(data)? {
        ElfClass::Bits32 => read_headers::<elf::FileHeader32<Endianness>, R>(data, 32),
        ElfClass::Bits64 => read_headers::<elf::FileHeader64<Endianness>, R>(data, 64),
    }
}

/// Returns the code symbols of `.symtab` and `.dynsym`, and names for the stubs of `.plt` (as
/// `name@plt`), sorted by value; of several at one value the best name for people is first. A
/// stripped Go program has those of `.gopclntab`. A file without section headers has none.
pub fn read_elf_symbols<'data, R: ReadRef<'data>>(data: R) -> Result<Vec<Symbol>, ElfError> {
    match elf_class(data)? {
        ElfClass::Bits32 => read_symbols::<elf::FileHeader32<Endianness>, R>(data),
        ElfClass::Bits64 => read_symbols::<elf::FileHeader64<Endianness>, R>(data),
    }
}

/// Returns the ranges of addresses in `.eh_frame`: of functions, and of parts of functions.
pub fn read_elf_frames<'data, R: ReadRef<'data>>(data: R) -> Result<Vec<FrameRange>, ElfError> {
    match elf_class(data)? {
        ElfClass::Bits32 => read_frames::<elf::FileHeader32<Endianness>, R>(data),
        ElfClass::Bits64 => read_frames::<elf::FileHeader64<Endianness>, R>(data),
    }
}

/// Returns the values of the symbols with these names, of any type, in `.symtab`.
pub fn read_elf_symbol_values<'data, R: ReadRef<'data>>(
    data: R,
    names: &[String],
) -> Result<Vec<(String, u64)>, ElfError> {
    match elf_class(data)? {
        ElfClass::Bits32 => read_symbol_values::<elf::FileHeader32<Endianness>, R>(data, names),
        ElfClass::Bits64 => read_symbol_values::<elf::FileHeader64<Endianness>, R>(data, names),
    }
}

/// Bytes of a segment or section of notes, and their number, that are searched for a build id.
const MAX_NOTE_SIZE: u64 = 1 << 16;
const MAX_NOTES: usize = 32;

enum ElfClass {
    Bits32,
    Bits64,
}

fn elf_class<'data, R: ReadRef<'data>>(data: R) -> Result<ElfClass, ElfError> {
    let ident = data.read_bytes_at(0, 5).unwrap_or(&[]);
    match ident {
        [0x7f, b'E', b'L', b'F', 1] => Ok(ElfClass::Bits32),
        [0x7f, b'E', b'L', b'F', 2] => Ok(ElfClass::Bits64),
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

fn read_headers<'data, E, R>(data: R, bits: u8) -> Result<ElfHeaders, ElfError>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let (header, endian) = read_header::<E, R>(data)?;
    let offset: u64 = header.e_phoff(endian).into();
    let program = header
        .program_headers(endian, data)
        .map_err(malformed_error("program headers", offset))?;
    let of_type = |kind| {
        let segments = program.iter();
        segments.filter(move |segment| segment.p_type(endian) == kind)
    };
    let segments: Vec<_> = of_type(elf::PT_LOAD)
        .map(|segment| LoadSegment {
            offset: segment.p_offset(endian).into(),
            address: segment.p_vaddr(endian).into(),
            file_size: segment.p_filesz(endian).into(),
            memory_size: segment.p_memsz(endian).into(),
            flags: segment.p_flags(endian),
        })
        .collect();
    let end = offset.saturating_add(std::mem::size_of_val(program) as u64);
    let loaded = segments.iter().find(|segment: &&LoadSegment| {
        segment.offset <= offset && end <= segment.offset.saturating_add(segment.file_size)
    });
    let table = loaded.map_or(0, |segment| {
        segment.address.wrapping_add(offset - segment.offset)
    });
    let dynamic = of_type(elf::PT_DYNAMIC).next();
    let entries = dynamic.filter(|segment| segment.p_filesz(endian).into() <= MAX_NOTE_SIZE);
    let entries = entries.and_then(|segment| segment.dynamic(endian, data).ok()?);
    let is_pie = entries.unwrap_or_default().iter().any(|entry| {
        let (tag, value): (u64, u64) = (entry.d_tag(endian).into(), entry.d_val(endian).into());
        tag == elf::DT_FLAGS_1.into() && value & u64::from(elf::DF_1_PIE) != 0
    });
    Ok(ElfHeaders {
        bits,
        kind: header.e_type(endian),
        machine: header.e_machine(endian),
        entry: header.e_entry(endian).into(),
        build_id: find_build_id(header, endian, program, data),
        debug_link: read_debug_link(header, endian, data),
        program_headers: (table, program.len()),
        dynamic: dynamic.map_or(0, |segment| segment.p_vaddr(endian).into()),
        is_program: header.e_type(endian) == elf::ET_EXEC || is_pie,
        has_loader: of_type(elf::PT_INTERP).next().is_some(),
        segments,
    })
}

/// Returns the first GNU build id among the PT_NOTE segments, else among the note sections (an object
/// file, a detached debug file). Broken notes have none.
fn find_build_id<'data, E, R>(
    header: &E,
    endian: Endianness,
    program: &'data [E::ProgramHeader],
    data: R,
) -> Option<Vec<u8>>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    // Each range that is read stays in memory.
    let in_segments = program
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_NOTE)
        .filter(|segment| segment.p_filesz(endian).into() <= MAX_NOTE_SIZE)
        .take(MAX_NOTES)
        .filter_map(|segment| segment.notes(endian, data).ok()?);
    let sections = read_sections(header, endian, data).unwrap_or_default();
    let in_sections = sections
        .iter()
        .take(MAX_SECTIONS)
        .filter(|section| section.sh_type(endian) == elf::SHT_NOTE)
        .filter(|section| section.sh_size(endian).into() <= MAX_NOTE_SIZE)
        .take(MAX_NOTES)
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

/// Returns name and CRC in `.gnu_debuglink`: a name that ends in a zero byte, padding to four bytes, a CRC.
fn read_debug_link<'data, E, R>(header: &E, endian: Endianness, data: R) -> Option<(Vec<u8>, u32)>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let sections = read_sections(header, endian, data).ok()?;
    let section = section_by_name(&sections, endian, b".gnu_debuglink")?;
    if section.sh_size(endian).into() > MAX_NOTE_SIZE {
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

/// Returns the header and its byte order.
pub(crate) fn read_header<'data, E, R>(data: R) -> Result<(&'data E, Endianness), ElfError>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let header = E::parse(data).map_err(malformed_error("header", 0))?;
    let endian = header.endian().map_err(malformed_error("header", 0))?;
    Ok((header, endian))
}

/// Returns the section headers, which can be none.
pub(crate) fn read_sections<'data, E, R>(
    header: &E,
    endian: Endianness,
    data: R,
) -> Result<SectionTable<'data, E, R>, ElfError>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let offset: u64 = header.e_shoff(endian).into();
    let sections = header.sections(endian, data);
    sections.map_err(malformed_error("section headers", offset))
}

pub(crate) fn section_by_name<'data, E, R>(
    table: &SectionTable<'data, E, R>,
    endian: Endianness,
    name: &[u8],
) -> Option<&'data E::SectionHeader>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let mut sections = table.iter().take(MAX_SECTIONS);
    sections.find(|section| table.section_name(endian, section) == Ok(name))
}

/// Why bytes are not an ELF file that can be used. Offsets are in bytes from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElfError {
    /// The file does not begin with an ELF header of class 32 or 64; `magic` is what its first
    /// bytes are.
    NotElf { magic: u32 },
    /// The part `what`, said to be at `offset`, is cut off or contradicts itself.
    Malformed {
        what: &'static str,
        offset: u64,
        reason: String,
    },
}

impl ElfError {
    pub fn offset(&self) -> u64 {
        match self {
            ElfError::NotElf { .. } => 0,
            ElfError::Malformed { offset, .. } => *offset,
        }
    }

    /// The bad value, if it is a number.
    pub fn bad_value(&self) -> Option<u64> {
        match self {
            ElfError::NotElf { magic } => Some(u64::from(*magic)),
            ElfError::Malformed { .. } => None,
        }
    }
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElfError::NotElf { .. } => write!(f, "not an ELF file"),
            ElfError::Malformed { what, reason, .. } => write!(f, "bad ELF {what}: {reason}"),
        }
    }
}

impl std::error::Error for ElfError {}

/// Returns a converter of errors of `object`: `what` was read at `offset`.
pub(crate) fn malformed_error(
    what: &'static str,
    offset: u64,
) -> impl Fn(object::Error) -> ElfError {
    move |error| ElfError::Malformed {
        what,
        offset,
        reason: error.to_string(),
    }
}
