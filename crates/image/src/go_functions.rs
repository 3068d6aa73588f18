//! Functions of Go programs from `.gopclntab`, which the runtime needs: a stripped program has it, too.
//!
//! The table (Go's `internal/abi` and `debug/gosym`) begins with a header: u32 magic, two zero bytes, u8 quantum of
//! instructions, u8 size of a pointer, then words: number of functions, number of files, start of the text, and the
//! offsets of names, units, files, tables and functions. A row of the list of functions is the u32 offset of an entry
//! from the start of the text and the u32 offset of its data, which begins with the entry and the i32 offset of its
//! name. One more row has the end of the last function.

use crate::symbols::{name_at, Symbol, SymbolBinding};

/// Go 1.18, and 1.20 and later.
const MAGICS: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
const WORDS_AT: usize = 8;
const ROW: usize = 8;

struct GoTable<'a> {
    bytes: &'a [u8],
    pointer_size: usize,
}

impl<'a> GoTable<'a> {
    fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Returns a word of the header.
    fn header_word(&self, index: usize) -> Option<u64> {
        let at = WORDS_AT + index * self.pointer_size;
        let low = Self::u32_at(self.bytes, at)?;
        let high = match self.pointer_size {
            8 => Self::u32_at(self.bytes, at + 4)?,
            _ => 0,
        };
        Some(u64::from(high) << 32 | u64::from(low))
    }

    /// Returns the table from a given offset. The header word with number `index` contains the offset.
    fn part(&self, index: usize) -> Option<&'a [u8]> {
        let start = usize::try_from(self.header_word(index)?).ok()?;
        self.bytes.get(start..)
    }
}

/// Returns the functions in a table; none if it is malformed or of another version. `text` is the address of `.text`.
pub(crate) fn go_functions(bytes: &[u8], text: u64) -> impl Iterator<Item = Symbol> + '_ {
    read_table(bytes, text).into_iter().flatten()
}

fn read_table(bytes: &[u8], text: u64) -> Option<impl Iterator<Item = Symbol> + '_> {
    let magic = GoTable::u32_at(bytes, 0)?;
    let pointer_size = usize::from(*bytes.get(7)?);
    if !MAGICS.contains(&magic) || !matches!(pointer_size, 4 | 8) {
        return None;
    }
    let table = GoTable {
        bytes,
        pointer_size,
    };
    let (names, functions) = (table.part(3)?, table.part(7)?);
    let count = usize::try_from(table.header_word(0)?).ok()?;
    let text = match table.header_word(2)? {
        0 => text,
        start => start,
    };
    let rows = functions.get(..count.checked_add(1)?.checked_mul(ROW)?.checked_sub(4)?)?;
    Some((0..count).filter_map(move |index| {
        let at = index * ROW;
        let start = GoTable::u32_at(rows, at)?;
        let data = GoTable::u32_at(rows, at + 4)? as usize;
        let end = GoTable::u32_at(rows, at + ROW)?;
        Some(Symbol {
            value: text.wrapping_add(start.into()),
            size: end.saturating_sub(start).into(),
            name: name_at(names, GoTable::u32_at(functions, data.checked_add(4)?)?)?,
            binding: SymbolBinding::Local,
        })
    }))
}
