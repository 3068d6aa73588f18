//! Code symbols of an ELF file, with names for the stubs of its procedure linkage table.
//!
//! Sections of a hostile file can overlap, and symbols can share long names. So only the first symbol table of each
//! kind and a few relocation sections are read, and all names together take about as much memory as the file.

use std::cmp::Reverse;
use std::collections::HashMap;

use object::elf;
use object::read::elf::{FileHeader, Rel, Rela, SectionHeader, SectionTable, Sym};
use object::read::{ReadRef, SectionIndex};
use object::Endianness;

use crate::elf::{malformed_error, read_header, read_sections, section_by_name, ElfError};
use crate::go_functions::go_functions;

/// Sections that are looked at. Linked programs have a few dozen.
pub(crate) const MAX_SECTIONS: usize = 1 << 14;
/// Bytes of a symbol or string table.
const MAX_TABLE: u64 = 1 << 28;
/// Bytes of a name; longer ones are dropped.
const MAX_NAME: usize = 1 << 14;
/// Bytes of all names, beside the size of the file.
const FREE_NAMES: u64 = 1 << 20;
const MAX_SYMBOLS: usize = 1 << 21;
/// Relocation sections, and sections of stubs.
const MAX_LINKAGE_SECTIONS: usize = 8;
/// Sections with stubs.
pub(crate) const LINKAGE_SECTIONS: [&[u8]; 4] = [b".plt", b".plt.sec", b".plt.got", b".plt.bnd"];
/// Name of the code of a procedure linkage table that belongs to no function.
pub const LINKAGE_TABLE: &str = ".plt";
/// JUMP_SLOT and GLOB_DAT have these numbers on i386 and on x86-64.
const SLOT_TYPES: [u32; 2] = [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT];

/// Where a name comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum SymbolBinding {
    Global = b'g',
    Weak = b'w',
    Local = b'l',
    /// Not in a symbol table: a stub of a procedure linkage table.
    Plt = b'p',
    /// Without a symbol: the bounds are those of a frame description.
    Frame = b'f',
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Symbol {
    /// Virtual address in the file's own numbering (before relocation).
    pub value: u64,
    /// Bytes; 0 if the file does not have the size.
    pub size: u64,
    pub name: String,
    pub binding: SymbolBinding,
}

/// Returns the symbols of two files of one program, such as a stripped one and its debug file, sorted as those of one.
pub fn join_symbols(mut some: Vec<Symbol>, more: Vec<Symbol>) -> Vec<Symbol> {
    some.extend(more);
    sort_symbols(some)
}

/// Returns the symbols in order, each once.
fn sort_symbols(mut symbols: Vec<Symbol>) -> Vec<Symbol> {
    // all of a symbol counts, so that equal ones are neighbours
    symbols.sort_unstable_by(|a, b| {
        (sort_rank(a), &a.name, a.size).cmp(&(sort_rank(b), &b.name, b.size))
    });
    symbols.dedup();
    symbols
}

/// Order: by value; then sized ones, global before local before weak, with few leading underscores, long names first:
/// the first of several is the one that perf shows.
fn sort_rank(symbol: &Symbol) -> (u64, bool, u8, usize, Reverse<usize>) {
    let underscores = symbol.name.len() - symbol.name.trim_start_matches('_').len();
    let binding = match symbol.binding {
        SymbolBinding::Global => 0,
        SymbolBinding::Local => 1,
        SymbolBinding::Weak => 2,
        SymbolBinding::Plt => 3,
        SymbolBinding::Frame => 4,
    };
    (
        symbol.value,
        symbol.size == 0,
        binding,
        underscores,
        Reverse(symbol.name.len()),
    )
}

pub(crate) fn read_symbols<'data, E, R>(data: R) -> Result<Vec<Symbol>, ElfError>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let mut reader = SymbolReader::<E, R>::new(data)?;
    reader.read_symbol_table(elf::SHT_SYMTAB)?;
    reader.read_symbol_table(elf::SHT_DYNSYM)?;
    reader.read_go_functions();
    reader.read_linkage_stubs();
    Ok(sort_symbols(reader.symbols))
}

/// Returns the values of symbols of any type in `.symtab`, in order of the table.
pub(crate) fn read_symbol_values<'data, E, R>(
    data: R,
    names: &[String],
) -> Result<Vec<(String, u64)>, ElfError>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let reader = SymbolReader::<E, R>::new(data)?;
    let Some(section) = reader.section_of_type(elf::SHT_SYMTAB) else {
        return Ok(Vec::new());
    };
    let strings = reader.linked_string_table(section);
    let symbols = reader.symbol_entries(section)?.iter();
    let values = symbols.filter_map(|symbol| {
        let name = names.iter().find(|name| {
            let rest = strings.get(symbol.st_name(reader.endian) as usize..);
            let rest = rest.and_then(|rest| rest.strip_prefix(name.as_bytes()));
            rest.is_some_and(|rest| rest.first() == Some(&0))
        });
        Some((name?.clone(), symbol.st_value(reader.endian).into()))
    });
    Ok(values.collect())
}

struct SymbolReader<'data, E: FileHeader<Endian = Endianness>, R: ReadRef<'data>> {
    header: &'data E,
    endian: Endianness,
    table: SectionTable<'data, E, R>,
    data: R,
    symbols: Vec<Symbol>,
    /// Bytes that names may still take.
    name_bytes: u64,
}

impl<'data, E: FileHeader<Endian = Endianness>, R: ReadRef<'data>> SymbolReader<'data, E, R> {
    fn new(data: R) -> Result<Self, ElfError> {
        let (header, endian) = read_header::<E, R>(data)?;
        Ok(SymbolReader {
            header,
            endian,
            table: read_sections(header, endian, data)?,
            data,
            symbols: Vec::new(),
            name_bytes: data.len().unwrap_or(0).min(MAX_TABLE) + FREE_NAMES,
        })
    }

    fn section_of_type(&self, kind: u32) -> Option<&'data E::SectionHeader> {
        let mut sections = self.table.iter().take(MAX_SECTIONS);
        sections.find(|section| section.sh_type(self.endian) == kind)
    }

    fn linked_section(&self, section: &E::SectionHeader) -> Option<&'data E::SectionHeader> {
        let index = SectionIndex(section.sh_link(self.endian) as usize);
        self.table.section(index).ok()
    }

    fn is_too_large(&self, section: &E::SectionHeader) -> bool {
        section.sh_size(self.endian).into() > MAX_TABLE
    }

    /// Returns the entries of a symbol table; none if it is too large.
    fn symbol_entries(&self, section: &E::SectionHeader) -> Result<&'data [E::Sym], ElfError> {
        if self.is_too_large(section) {
            return Ok(&[]);
        }
        let offset: u64 = section.sh_offset(self.endian).into();
        let entries = section.data_as_array(self.endian, self.data);
        entries.map_err(malformed_error("symbol table", offset))
    }

    /// Returns all of the string table that `section` is linked to: reading each name alone from a file is slow.
    fn linked_string_table(&self, section: &E::SectionHeader) -> &'data [u8] {
        let strings = self.linked_section(section).filter(|strings| {
            strings.sh_type(self.endian) == elf::SHT_STRTAB && !self.is_too_large(strings)
        });
        let bytes = strings.and_then(|strings| strings.data(self.endian, self.data).ok());
        bytes.unwrap_or(&[])
    }

    /// Adds a symbol; false if there are too many.
    fn add_symbol(&mut self, symbol: Symbol) -> bool {
        let left = self.name_bytes.checked_sub(symbol.name.len() as u64);
        let has_room = left.is_some() && self.symbols.len() < MAX_SYMBOLS;
        if let (Some(left), true) = (left, has_room) {
            self.name_bytes = left;
            self.symbols.push(symbol);
        }
        has_room
    }

    fn read_symbol_table(&mut self, kind: u32) -> Result<(), ElfError> {
        let Some(section) = self.section_of_type(kind) else {
            return Ok(());
        };
        let strings = self.linked_string_table(section);
        for symbol in self.symbol_entries(section)?.iter().skip(1) {
            if let Some(found) = self.code_symbol(symbol, strings) {
                if !self.add_symbol(found) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn code_symbol(&self, symbol: &E::Sym, strings: &[u8]) -> Option<Symbol> {
        let endian = self.endian;
        if symbol.st_shndx(endian) == elf::SHN_UNDEF {
            return None;
        }
        let name = name_at(strings, symbol.st_name(endian))?;
        match symbol.st_type() {
            elf::STT_FUNC | elf::STT_GNU_IFUNC => {}
            // a label of assembly code, such as _start, if it is in code
            elf::STT_NOTYPE => {
                let index = SectionIndex(symbol.st_shndx(endian).into());
                let flags: u64 = self.table.section(index).ok()?.sh_flags(endian).into();
                if flags & u64::from(elf::SHF_EXECINSTR) == 0 || name.starts_with(".L") {
                    return None;
                }
            }
            _ => return None,
        }
        let binding = match symbol.st_bind() {
            elf::STB_LOCAL => SymbolBinding::Local,
            elf::STB_WEAK => SymbolBinding::Weak,
            _ => SymbolBinding::Global,
        };
        Some(Symbol {
            value: symbol.st_value(endian).into(),
            size: symbol.st_size(endian).into(),
            name,
            binding,
        })
    }

    /// Adds the functions of a stripped Go program.
    fn read_go_functions(&mut self) {
        if self.section_of_type(elf::SHT_SYMTAB).is_some() {
            return;
        }
        let section = |name| section_by_name(&self.table, self.endian, name);
        let table = section(b".gopclntab").or_else(|| section(b".data.rel.ro.gopclntab"));
        let table = table.filter(|table| !self.is_too_large(table));
        let bytes = table.and_then(|table| table.data(self.endian, self.data).ok());
        let text = section(b".text").map_or(0, |text| text.sh_addr(self.endian).into());
        for symbol in go_functions(bytes.unwrap_or(&[]), text) {
            if !self.add_symbol(symbol) {
                break;
            }
        }
    }

    /// Adds the stubs of procedure linkage tables, as `name@plt`. A stub jumps through a slot of the global offset
    /// table, and the relocation of the slot has the name of the function. So stubs are found by their jump, for every
    /// layout that a linker gives the table. Broken tables have none.
    fn read_linkage_stubs(&mut self) {
        let mut slots = HashMap::new();
        let sections = self.table.iter().take(MAX_SECTIONS);
        let relocations = sections.filter(|section| {
            matches!(section.sh_type(self.endian), elf::SHT_RELA | elf::SHT_REL)
                && !self.is_too_large(section)
        });
        for section in relocations.take(MAX_LINKAGE_SECTIONS) {
            let _ = self.read_slots(&mut slots, section);
        }
        if slots.is_empty() {
            return;
        }
        let is_64_bit = self.header.e_machine(self.endian) == elf::EM_X86_64;
        let got = self.got_address();
        let sections = self.table.iter().take(MAX_SECTIONS);
        let stubs = sections.filter(|section| {
            let name = self.table.section_name(self.endian, section).unwrap_or(b"");
            LINKAGE_SECTIONS.contains(&name) && !self.is_too_large(section)
        });
        for section in stubs.take(MAX_LINKAGE_SECTIONS).collect::<Vec<_>>() {
            let size = match section.sh_entsize(self.endian).into() {
                8 => 8,
                _ => 16,
            };
            let start: u64 = section.sh_addr(self.endian).into();
            let code = section.data(self.endian, self.data).unwrap_or(&[]);
            for (number, stub) in code.chunks_exact(size).enumerate() {
                let value = start.wrapping_add((number * size) as u64);
                let slot = slot_of_stub(stub, value, is_64_bit, got);
                let found = slot.and_then(|slot| slots.get(&slot));
                let name = found.and_then(|&(strings, at)| name_at(strings, at));
                let stub = match name {
                    Some(name) => Symbol {
                        value,
                        size: size as u64,
                        name: format!("{name}@plt"),
                        binding: SymbolBinding::Plt,
                    },
                    // Code that calls the dynamic linker. The stubs after it are parts of this range.
                    None if number == 0 => Symbol {
                        value,
                        size: code.len() as u64,
                        name: LINKAGE_TABLE.to_owned(),
                        binding: SymbolBinding::Plt,
                    },
                    None => continue,
                };
                if !self.add_symbol(stub) {
                    return;
                }
            }
        }
    }

    /// Adds the slots of a relocation section: address -> string table and position of the name in it.
    fn read_slots(
        &self,
        slots: &mut HashMap<u64, (&'data [u8], u32)>,
        section: &E::SectionHeader,
    ) -> Option<()> {
        let (endian, data) = (self.endian, self.data);
        let table = self.linked_section(section)?;
        let strings = self.linked_string_table(table);
        let symbols = self.symbol_entries(table).ok()?;
        let mut add = |slot: u64, symbol: u32, kind: u32| {
            if let Some(symbol) = symbols.get(symbol as usize) {
                if SLOT_TYPES.contains(&kind) {
                    slots.insert(slot, (strings, symbol.st_name(endian)));
                }
            }
        };
        if section.sh_type(endian) == elf::SHT_RELA {
            let rows: &[E::Rela] = section.data_as_array(endian, data).ok()?;
            for row in rows {
                let kind = row.r_type(endian, false);
                add(row.r_offset(endian).into(), row.r_sym(endian, false), kind);
            }
        } else {
            let rows: &[E::Rel] = section.data_as_array(endian, data).ok()?;
            for row in rows {
                add(
                    row.r_offset(endian).into(),
                    row.r_sym(endian),
                    row.r_type(endian),
                );
            }
        }
        Some(())
    }

    /// Returns what %ebx holds in a position-independent i386 program: the address of `.got.plt`, else `.got`.
    fn got_address(&self) -> u64 {
        let got = |name| section_by_name(&self.table, self.endian, name);
        let found = got(b".got.plt").or_else(|| got(b".got"));
        found.map_or(0, |section| section.sh_addr(self.endian).into())
    }
}

/// Returns the name at `start` of a string table; `None` if it is empty, too long or not in the table.
pub(crate) fn name_at(strings: &[u8], start: u32) -> Option<String> {
    let rest = strings.get(start as usize..)?;
    let end = rest.iter().take(MAX_NAME).position(|byte| *byte == 0)?;
    let name = rest.get(..end).filter(|name| !name.is_empty())?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Returns the slot that the indirect jump of a stub goes through. The jump can follow ENDBR and a BND prefix.
fn slot_of_stub(stub: &[u8], address: u64, is_64_bit: bool, got: u64) -> Option<u64> {
    let at = match stub {
        [0xF3, 0x0F, 0x1E, 0xFA | 0xFB, 0xF2, ..] => 5,
        [0xF3, 0x0F, 0x1E, 0xFA | 0xFB, ..] => 4,
        [0xF2, ..] => 1,
        _ => 0,
    };
    let [0xFF, form, a, b, c, d] = *stub.get(at..at + 6)? else {
        return None;
    };
    let displacement = i32::from_le_bytes([a, b, c, d]);
    match (form, is_64_bit) {
        (0x25, true) => Some(
            address
                .wrapping_add(at as u64 + 6)
                .wrapping_add_signed(displacement.into()),
        ),
        (0x25, false) => Some(u64::from(displacement as u32)),
        (0xA3, false) => Some(got.wrapping_add_signed(displacement.into()) & 0xFFFF_FFFF),
        _ => None,
    }
}
