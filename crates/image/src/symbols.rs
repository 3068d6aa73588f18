//! Code symbols of an ELF file.

use std::cmp::Reverse;
use std::collections::HashSet;

use object::elf;
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym};
use object::read::{ReadRef, SectionIndex};
use object::Endianness;

use crate::budget::Budget;
use crate::error::ElfError;
use crate::plt;
use crate::symbol::{Binding, Symbol};
use crate::tables::{entries, header, name, place, sections, strings, MOST_SECTIONS};

pub(crate) fn read<'data, E, R>(data: R) -> Result<Vec<Symbol>, ElfError>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let (header, endian) = header::<E, R>(data)?;
    let table = sections(header, endian, data)?;
    let mut symbols = Vec::new();
    let mut seen = HashSet::new();
    let mut budget = Budget::of(data.len().unwrap_or(0));
    for section in table.iter().take(MOST_SECTIONS) {
        let kind = section.sh_type(endian);
        if matches!(kind, elf::SHT_SYMTAB | elf::SHT_DYNSYM)
            && seen.insert(kind)
            && budget.scan(place::<E>(section, endian))
        {
            let names = strings(section, endian, &table, data, &mut budget);
            for (place, symbol) in entries::<E, R>(section, endian, data)?.iter().enumerate() {
                let found = code_symbol::<E, R>(symbol, endian, &table, names);
                let Some(found) = found.filter(|_| place > 0) else {
                    continue;
                };
                if !budget.symbol(found.name.len()) {
                    break;
                }
                symbols.push(found);
            }
        }
    }
    // What is broken there costs names, not the file.
    for stub in plt::names(header, endian, &table, data, &mut budget) {
        symbols.push(stub);
    }
    Ok(sorted(symbols))
}

/// The symbols of two files of one program, such as a stripped one and its debug file, in the order of one.
pub fn joined(mut some: Vec<Symbol>, more: Vec<Symbol>) -> Vec<Symbol> {
    some.extend(more);
    sorted(some)
}

/// In order, each once.
fn sorted(mut symbols: Vec<Symbol>) -> Vec<Symbol> {
    // all of a symbol counts, so that those that are equal are one
    symbols.sort_unstable_by(|a, b| (rank(a), &a.name, a.size).cmp(&(rank(b), &b.name, b.size)));
    symbols.dedup();
    symbols
}

/// Order: by value; then sized ones, global before local before weak, with few leading underscores, long names first:
/// the first of several is the one that perf shows.
fn rank(symbol: &Symbol) -> (u64, bool, u8, usize, Reverse<usize>) {
    let underscores = symbol.name.len() - symbol.name.trim_start_matches('_').len();
    let binding = match symbol.binding {
        Binding::Global => 0,
        Binding::Local => 1,
        Binding::Weak => 2,
        Binding::Plt => 3,
    };
    (
        symbol.value,
        symbol.size == 0,
        binding,
        underscores,
        Reverse(symbol.name.len()),
    )
}

fn code_symbol<'data, E, R>(
    symbol: &E::Sym,
    endian: Endianness,
    table: &SectionTable<'data, E, R>,
    names: &[u8],
) -> Option<Symbol>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    if symbol.st_shndx(endian) == elf::SHN_UNDEF {
        return None;
    }
    let name = name(names, symbol.st_name(endian))?;
    match symbol.st_type() {
        elf::STT_FUNC | elf::STT_GNU_IFUNC => {}
        // A label of assembly code, such as _start, if it lies in code.
        elf::STT_NOTYPE => {
            let section = table
                .section(SectionIndex(symbol.st_shndx(endian).into()))
                .ok()?;
            let flags: u64 = section.sh_flags(endian).into();
            if flags & u64::from(elf::SHF_EXECINSTR) == 0 || name.starts_with(".L") {
                return None;
            }
        }
        _ => return None,
    }
    let binding = match symbol.st_bind() {
        elf::STB_LOCAL => Binding::Local,
        elf::STB_WEAK => Binding::Weak,
        _ => Binding::Global,
    };
    let (value, size) = (
        symbol.st_value(endian).into(),
        symbol.st_size(endian).into(),
    );
    Some(Symbol {
        value,
        size,
        name,
        binding,
    })
}
