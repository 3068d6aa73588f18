//! Names for the stubs of a procedure linkage table.
//!
//! A stub jumps through a slot of the global offset table, and the relocation of that slot names
//! the function. So the stubs are found by their jump, whatever the linker's layout of the table
//! is.

use std::collections::HashMap;

use object::elf;
use object::read::elf::{FileHeader, Rel, Rela, SectionHeader, SectionTable, Sym};
use object::read::{ReadRef, SectionIndex};
use object::Endianness;

use crate::budget::Budget;
use crate::symbol::{Binding, Symbol};
use crate::tables::{entries, name, named, place, strings as strings_of, MOST_SECTIONS};

/// JUMP_SLOT and GLOB_DAT have these numbers on i386 and on x86-64 alike.
const SLOT_TYPES: [u32; 2] = [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT];

/// A slot of the global offset table: the string table that has its name, and where.
type Slots<'data> = HashMap<u64, (&'data [u8], u32)>;

/// The stubs whose slots some relocation section fills. Tables that are broken, or more than `budget` allows, have
/// none.
pub(crate) fn names<'data, E, R>(
    header: &E,
    endian: Endianness,
    table: &SectionTable<'data, E, R>,
    data: R,
    budget: &mut Budget,
) -> Vec<Symbol>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let mut slots = Slots::new();
    for section in table.iter().take(MOST_SECTIONS) {
        // one that is broken is as one that is not there
        let _ = fill::<E, R>(&mut slots, section, endian, table, data, budget);
    }
    let mut stubs = Vec::new();
    if slots.is_empty() {
        return stubs;
    }
    let x86_64 = header.e_machine(endian) == elf::EM_X86_64;
    let got = got_address(endian, table);
    for section in table.iter().take(MOST_SECTIONS) {
        let title = table.section_name(endian, section).unwrap_or(b"");
        if !matches!(title, b".plt" | b".plt.sec" | b".plt.got" | b".plt.bnd")
            || !budget.scan(place::<E>(section, endian))
        {
            continue;
        }
        let size = match section.sh_entsize(endian).into() {
            8 => 8,
            _ => 16,
        };
        let start: u64 = section.sh_addr(endian).into();
        let code = section.data(endian, data).unwrap_or(&[]);
        for (number, stub) in code.chunks_exact(size).enumerate() {
            let address = start.wrapping_add((number * size) as u64);
            let slot = slot_of(stub, address, x86_64, got);
            let found = slot.and_then(|slot| slots.get(&slot));
            let Some(name) = found.and_then(|&(strings, start)| name(strings, start)) else {
                continue;
            };
            let name = format!("{name}@plt");
            if !budget.symbol(name.len()) {
                return stubs;
            }
            stubs.push(Symbol {
                value: address,
                size: size as u64,
                name,
                binding: Binding::Plt,
            });
        }
    }
    stubs
}

/// Adds what a relocation section fills; `None` if it is none or is broken.
fn fill<'data, E, R>(
    slots: &mut Slots<'data>,
    section: &E::SectionHeader,
    endian: Endianness,
    table: &SectionTable<'data, E, R>,
    data: R,
    budget: &mut Budget,
) -> Option<()>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let kind = section.sh_type(endian);
    if !matches!(kind, elf::SHT_RELA | elf::SHT_REL) || !budget.scan(place::<E>(section, endian)) {
        return None;
    }
    let symbols = table
        .section(SectionIndex(section.sh_link(endian) as usize))
        .ok()?;
    if !budget.hold(place::<E>(symbols, endian)) {
        return None;
    }
    let strings = strings_of(symbols, endian, table, data, budget);
    let symbols = entries::<E, R>(symbols, endian, data).ok()?;
    let mut add = |slot: u64, symbol: u32| {
        if let Some(symbol) = symbols.get(symbol as usize) {
            slots.insert(slot, (strings, symbol.st_name(endian)));
        }
    };
    if kind == elf::SHT_RELA {
        let rows: &[E::Rela] = section.data_as_array(endian, data).ok()?;
        for row in rows {
            if SLOT_TYPES.contains(&row.r_type(endian, false)) {
                add(row.r_offset(endian).into(), row.r_sym(endian, false));
            }
        }
    } else {
        let rows: &[E::Rel] = section.data_as_array(endian, data).ok()?;
        for row in rows {
            if SLOT_TYPES.contains(&row.r_type(endian)) {
                add(row.r_offset(endian).into(), row.r_sym(endian));
            }
        }
    }
    Some(())
}

/// What %ebx holds in a position-independent i386 program: the address of `.got.plt`, else `.got`.
fn got_address<'data, E, R>(endian: Endianness, table: &SectionTable<'data, E, R>) -> u64
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let got = |title| named(table, endian, title);
    let found = got(b".got.plt").or_else(|| got(b".got"));
    found.map_or(0, |section| section.sh_addr(endian).into())
}

/// The slot that the indirect jump of `stub` goes through. The jump may follow ENDBR and a BND
/// prefix.
fn slot_of(stub: &[u8], address: u64, x86_64: bool, got: u64) -> Option<u64> {
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
    match (form, x86_64) {
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
