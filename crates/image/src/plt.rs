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

use crate::symbol::{Binding, Symbol};
use crate::tables::{entries, name, strings as strings_of};

/// JUMP_SLOT and GLOB_DAT have these numbers on i386 and on x86-64 alike.
const SLOT_TYPES: [u32; 2] = [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT];

/// The stubs whose slots the relocation section `index` fills; `None` if it is none or is broken.
pub(crate) fn names<'data, E, R>(
    header: &E,
    endian: Endianness,
    table: &SectionTable<'data, E, R>,
    index: SectionIndex,
    data: R,
) -> Option<Vec<Symbol>>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let section = table.section(index).ok()?;
    let slots: Vec<(u64, u32)> = match section.sh_type(endian) {
        elf::SHT_RELA => {
            let rows: &[E::Rela] = section.data_as_array(endian, data).ok()?;
            let rows = rows
                .iter()
                .filter(|row| SLOT_TYPES.contains(&row.r_type(endian, false)));
            rows.map(|row| (row.r_offset(endian).into(), row.r_sym(endian, false)))
                .collect()
        }
        elf::SHT_REL => {
            let rows: &[E::Rel] = section.data_as_array(endian, data).ok()?;
            let rows = rows
                .iter()
                .filter(|row| SLOT_TYPES.contains(&row.r_type(endian)));
            rows.map(|row| (row.r_offset(endian).into(), row.r_sym(endian)))
                .collect()
        }
        _ => return None,
    };
    let symbols = table
        .section(SectionIndex(section.sh_link(endian) as usize))
        .ok()?;
    let strings = strings_of(symbols, endian, table, data);
    let symbols = entries::<E, R>(symbols, endian, data).ok()?;
    let slots: HashMap<u64, String> = slots
        .into_iter()
        .filter_map(|(slot, symbol)| {
            let symbol = symbols.get(symbol as usize)?;
            Some((slot, name(strings, symbol.st_name(endian))?))
        })
        .collect();
    if slots.is_empty() {
        return None;
    }
    let x86_64 = header.e_machine(endian) == elf::EM_X86_64;
    let got = got_address(endian, table);
    let mut stubs = Vec::new();
    for section in table.iter() {
        let title = table.section_name(endian, section).unwrap_or(b"");
        if !matches!(title, b".plt" | b".plt.sec" | b".plt.got" | b".plt.bnd") {
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
            if let Some(name) = slot.and_then(|slot| slots.get(&slot)) {
                let name = format!("{name}@plt");
                stubs.push(Symbol {
                    value: address,
                    size: size as u64,
                    name,
                    binding: Binding::Plt,
                });
            }
        }
    }
    Some(stubs)
}

/// What %ebx holds in a position-independent i386 program: the address of `.got.plt`, else `.got`.
fn got_address<'data, E, R>(endian: Endianness, table: &SectionTable<'data, E, R>) -> u64
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let named = |title: &[u8]| table.section_by_name(endian, title);
    let got = named(b".got.plt").or_else(|| named(b".got"));
    got.map_or(0, |(_, section)| section.sh_addr(endian).into())
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
