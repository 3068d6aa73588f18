//! The functions of one ELF file, by file offset.
//!
//! File offsets, not virtual addresses, are what mappings and perf's address filters are written in, so that is how
//! functions are kept here: a mapping turns an address into an offset by subtraction.

use crate::elf::Segment;
use crate::symbols::{Binding, Symbol};

/// `offset` in the file and `size` in bytes; `address` as the file numbers it. A size that the file leaves out reaches
/// to the next function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub offset: u64,
    pub size: u64,
    pub address: u64,
    pub binding: Binding,
}

/// A range of file offsets with the function it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    pub start: u64,
    pub end: u64,
    /// Index of the function.
    pub owner: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Functions {
    functions: Vec<Function>,
    owned: Vec<Owned>,
    pieces: Pieces,
}

/// Programs have a few.
const MOST_PIECES: usize = 1 << 8;

/// Executable pieces of the file that have bytes in it: (file offset, end, address of the offset), sorted.
#[derive(Clone, Debug, Default)]
struct Pieces(Vec<(u64, u64, u64)>);

impl Pieces {
    fn new(segments: &[Segment]) -> Pieces {
        let mut pieces: Vec<_> = segments
            .iter()
            .filter(|each| each.flags & 1 != 0 && each.file_size != 0)
            .filter_map(|each| {
                Some((
                    each.offset,
                    each.offset.checked_add(each.file_size)?,
                    each.address,
                ))
            })
            .collect();
        pieces.sort_unstable();
        // each symbol is looked for in all of them
        pieces.truncate(MOST_PIECES);
        Pieces(pieces)
    }

    /// The file offset of an address, and the end of its piece.
    fn offset(&self, address: u64) -> Option<(u64, u64)> {
        self.0.iter().find_map(|&(start, end, base)| {
            let at = address.wrapping_sub(base).wrapping_add(start);
            (start <= at && at < end).then_some((at, end))
        })
    }

    fn at(&self, offset: u64) -> Option<(u64, u64, u64)> {
        let holds = |&&(start, end, _): &&(u64, u64, u64)| start <= offset && offset < end;
        self.0.iter().find(holds).copied()
    }
}

impl Functions {
    /// Of the file with these segments. `symbols` are sorted by value, the best name first where several share one.
    pub fn new(segments: &[Segment], symbols: Vec<Symbol>) -> Functions {
        let pieces = Pieces::new(segments);
        let mut functions: Vec<Function> = symbols
            .into_iter()
            .filter_map(|symbol| {
                let (offset, end) = pieces.offset(symbol.value)?;
                Some(Function {
                    name: symbol.name,
                    offset,
                    size: symbol.size.min(end - offset),
                    address: symbol.value,
                    binding: symbol.binding,
                })
            })
            .collect();
        functions.sort_by_key(|each| each.offset); // stable: keeps the best name first
        fill_sizes(&mut functions, &pieces);
        let owned = owned(&functions);
        Functions {
            functions,
            owned,
            pieces,
        }
    }

    /// In order of offset; the best name first where several share an offset.
    pub fn all(&self) -> &[Function] {
        &self.functions
    }

    /// Disjoint ranges, sorted. Where functions overlap, the one that starts last owns the bytes, and the outer one
    /// again what lies behind it.
    pub fn owned(&self) -> &[Owned] {
        &self.owned
    }

    /// The function that owns a file offset: its index, and where its range ends.
    pub fn at(&self, offset: u64) -> Option<(u32, &Function)> {
        let index = self.owned.partition_point(|each| each.start <= offset);
        let range = self.owned.get(index.checked_sub(1)?)?;
        let function = self.functions.get(range.owner as usize)?;
        (offset < range.end).then_some((range.owner, function))
    }

    /// The address that the file gives to a file offset; the offset itself if it gives none.
    pub fn address(&self, offset: u64) -> u64 {
        self.pieces.at(offset).map_or(offset, |(start, _, base)| {
            (offset - start).wrapping_add(base)
        })
    }
}

fn fill_sizes(functions: &mut [Function], pieces: &Pieces) {
    // from behind: the next function's offset is known then
    let (mut here, mut following) = (u64::MAX, u64::MAX);
    for each in functions.iter_mut().rev() {
        if each.offset != here {
            following = here;
            here = each.offset;
        }
        if each.size == 0 {
            let end = pieces
                .at(each.offset)
                .map_or(each.offset, |(_, end, _)| end);
            each.size = end.min(following) - each.offset;
        }
    }
}

fn owned(functions: &[Function]) -> Vec<Owned> {
    let mut ranges = Vec::new();
    let mut add = |start: u64, end: u64, owner: u32| {
        if start < end {
            ranges.push(Owned { start, end, owner });
        }
    };
    let mut open: Vec<(u64, u32)> = Vec::new(); // (end, index), the innermost last
    let mut at = 0;
    let mut last = None;
    for (function, index) in functions.iter().zip(0..) {
        if last.replace(function.offset) == Some(function.offset) {
            continue;
        }
        while let Some(&(end, owner)) = open.last().filter(|(end, _)| *end <= function.offset) {
            open.pop();
            add(at, end, owner);
            at = at.max(end);
        }
        if let Some(&(_, owner)) = open.last() {
            add(at, function.offset, owner);
        }
        at = function.offset;
        open.push((function.offset.saturating_add(function.size), index));
    }
    while let Some((end, owner)) = open.pop() {
        add(at, end, owner);
        at = at.max(end);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(value: u64, size: u64, name: &str) -> Symbol {
        Symbol {
            value,
            size,
            name: name.to_owned(),
            binding: Binding::Global,
        }
    }

    fn functions(symbols: Vec<Symbol>) -> Functions {
        let segment = |offset, address, file_size, flags| Segment {
            offset,
            address,
            file_size,
            memory_size: file_size,
            flags,
        };
        let segments = [
            segment(0x1000, 0x40_1000, 0x200, 5),
            segment(0, 0x40_0000, 0x100, 4),
        ];
        Functions::new(&segments, symbols)
    }

    #[test]
    fn the_inner_function_owns_its_bytes_and_the_outer_what_is_behind() {
        let found = functions(vec![
            symbol(0x40_1000, 0x40, "outer"),
            symbol(0x40_1010, 0x10, "inner"),
            symbol(0x40_1010, 0x10, "alias"),
        ]);
        let name = |offset| found.at(offset).map(|(_, each)| each.name.as_str());
        assert_eq!(name(0xfff), None);
        assert_eq!(name(0x1000), Some("outer"));
        assert_eq!(name(0x1010), Some("inner"));
        assert_eq!(name(0x101f), Some("inner"));
        assert_eq!(name(0x1020), Some("outer"));
        assert_eq!(name(0x1040), None);
    }

    #[test]
    fn a_size_left_out_reaches_to_the_next_function_or_the_end_of_the_segment() {
        let found = functions(vec![
            symbol(0x40_1000, 0, "first"),
            symbol(0x40_1000, 0, "also"),
            symbol(0x40_1080, 0, "last"),
            symbol(0x40_0010, 0, "not code"),
        ]);
        let sizes: Vec<_> = found
            .all()
            .iter()
            .map(|each| (each.offset, each.size))
            .collect();
        assert_eq!(sizes, [(0x1000, 0x80), (0x1000, 0x80), (0x1080, 0x180)]);
    }

    #[test]
    fn addresses_are_the_files_own() {
        let found = functions(Vec::new());
        assert_eq!(found.address(0x1234), 0x1234);
        assert_eq!(found.address(0x1010), 0x40_1010);
        assert!(found.at(0x1010).is_none());
    }
}
