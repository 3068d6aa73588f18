//! The symbols of a kernel module, from the memory of the guest while the kernel initializes the module.
//!
//! At the start of `do_init_module`, `module.kallsyms` has all symbols of the module's file, with the addresses to
//! which the kernel has moved them. Later it lacks those of initialization code.

use crate::shared::config::ModuleLayout;

/// Bytes of `module.name` and of the longest symbol, with NUL.
const MAX_NAME: usize = 512;
const MAX_SYMBOLS: u64 = 1 << 17;
/// Elf64_Sym: name u32, info u8, other u8, section u16, value u64, size u64.
const SYMBOL: usize = 24;
const FUNCTION: u8 = 2;
const PAGE: u64 = 4096;

/// Fills a buffer from an address; false if a part of it is not mapped.
pub(super) type ReadMemory<'a> = &'a dyn Fn(u64, &mut [u8]) -> bool;

/// Returns the name of the module at `module`, a line, and its functions, a line for each: address, size (both in
/// hexadecimal), type as in kallsyms, and name. None if they cannot be read.
pub(super) fn read_module(
    layout: &ModuleLayout,
    module: u64,
    read: ReadMemory<'_>,
) -> Option<Vec<u8>> {
    let read_word = |address: u64| {
        let mut bytes = [0; 8];
        read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    };
    let mut lines = read_string(module.wrapping_add(layout.name), read)?;
    lines.push(b'\n');
    let table = read_word(module.wrapping_add(layout.kallsyms))?;
    let symbols = read_word(table.wrapping_add(layout.symbols))?;
    let count = read_word(table.wrapping_add(layout.count))? & u64::from(u32::MAX);
    let names = read_word(table.wrapping_add(layout.names))?;
    let mut rows = vec![0; SYMBOL * count.min(MAX_SYMBOLS) as usize];
    if !read(symbols, &mut rows) {
        return None;
    }
    for row in rows.chunks_exact(SYMBOL) {
        let number = |range: std::ops::Range<usize>| {
            let bytes = row[range].iter().rev();
            bytes.fold(0, |value, &byte| value << 8 | u64::from(byte))
        };
        let (name, info, section) = (number(0..4), row[4], number(6..8));
        if info & 15 != FUNCTION || section == 0 {
            continue;
        }
        let kind = if info >> 4 == 0 { 't' } else { 'T' };
        let name = read_string(names.wrapping_add(name), read)?;
        lines.extend(format!("{:x} {:x} {kind} ", number(8..16), number(16..24)).into_bytes());
        lines.extend(name);
        lines.push(b'\n');
    }
    Some(lines)
}

/// Reads a string up to its NUL, page by page: the page after it may not be mapped.
pub(super) fn read_string(mut address: u64, read: ReadMemory<'_>) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    while found.len() < MAX_NAME {
        let room = (PAGE - address % PAGE).min(64) as usize;
        let mut bytes = [0; 64];
        if !read(address, &mut bytes[..room]) {
            return None;
        }
        let end = bytes[..room].iter().position(|&byte| byte == 0);
        found.extend_from_slice(&bytes[..end.unwrap_or(room)]);
        if end.is_some() {
            break;
        }
        address = address.wrapping_add(room as u64);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0xffff_ffff_c000_0000;

    fn memory_of_a_module() -> Vec<u8> {
        let mut memory = vec![0; 8192];
        let mut write =
            |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
        write(0x18, b"fault_test\0");
        write(0x100, &(BASE + 0x200).to_le_bytes());
        // symtab, num_symtab, strtab
        write(0x200, &(BASE + 0x300).to_le_bytes());
        write(0x208, &4_u32.to_le_bytes());
        write(0x210, &(BASE + 0xfe0).to_le_bytes());
        // The strings cross a page.
        let long = "x".repeat(80);
        write(0xfe0, format!("\0init_module\0{long}\0").as_bytes());
        let symbols: [(u32, u8, u16, u64, u64); 4] = [
            (0, 0, 0, 0, 0),
            (1, 0x12, 1, 0xffff_ffff_c100_0000, 0x20),
            (1, 0x11, 2, 0xffff_ffff_c200_0000, 8), // data
            (13, 0x02, 1, 0xffff_ffff_c000_5000, 0x1f),
        ];
        for (index, (name, info, section, value, size)) in symbols.into_iter().enumerate() {
            let mut row = name.to_le_bytes().to_vec();
            row.extend([info, 0]);
            row.extend(section.to_le_bytes());
            row.extend(value.to_le_bytes());
            row.extend(u64::to_le_bytes(size));
            write(0x300 + SYMBOL * index, &row);
        }
        memory
    }

    fn layout() -> ModuleLayout {
        ModuleLayout {
            init: 0,
            name: 0x18,
            kallsyms: 0x100,
            symbols: 0,
            count: 8,
            names: 0x10,
        }
    }

    #[test]
    fn functions_of_a_module_are_read_with_their_addresses() {
        let memory = memory_of_a_module();
        let read = |address: u64, into: &mut [u8]| {
            let at = address.wrapping_sub(BASE) as usize;
            let found = memory.get(at..at.saturating_add(into.len()));
            found.map(|bytes| into.copy_from_slice(bytes)).is_some()
        };
        let long = "x".repeat(80);
        let expected = format!(
            "fault_test\nffffffffc1000000 20 T init_module\nffffffffc0005000 1f t {long}\n"
        );
        let found = read_module(&layout(), BASE, &read);
        assert_eq!(found, Some(expected.into_bytes()));
        assert_eq!(read_module(&layout(), 0, &read), None);
    }
}
