//! The functions of one ELF file, by file offset.
//!
//! File offsets, not virtual addresses, are what mappings and perf's address filters are written in, so that is how
//! functions are kept here: a mapping turns an address into an offset by subtraction.

use crate::elf::LoadSegment;
use crate::frames::FrameRange;
use crate::symbols::{Symbol, SymbolBinding};

/// A function: `offset` in the file and `size` in bytes, `address` as in the file. Without a size in the file it
/// reaches to the next function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub offset: u64,
    pub size: u64,
    pub address: u64,
    pub binding: SymbolBinding,
}

/// A range of file offsets with the function it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionRange {
    pub start: u64,
    pub end: u64,
    /// Index of the function.
    pub owner: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Functions {
    functions: Vec<Function>,
    owned: Vec<FunctionRange>,
    code: CodeSegments,
}

/// Executable segments that are used; programs have a few.
const MAX_SEGMENTS: usize = 1 << 8;

/// The executable segments with bytes in the file: (file offset, end, address), sorted.
#[derive(Clone, Debug, Default)]
struct CodeSegments(Vec<(u64, u64, u64)>);

impl CodeSegments {
    fn new(segments: &[LoadSegment]) -> CodeSegments {
        let mut code: Vec<_> = segments
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
        code.sort_unstable();
        // each symbol is searched in all of them
        code.truncate(MAX_SEGMENTS);
        CodeSegments(code)
    }

    /// Returns the file offset of an address, and the end of its segment.
    fn file_offset_and_segment_end(&self, address: u64) -> Option<(u64, u64)> {
        self.0.iter().find_map(|&(start, end, base)| {
            let at = address.wrapping_sub(base).wrapping_add(start);
            (start <= at && at < end).then_some((at, end))
        })
    }

    fn segment_at_offset(&self, offset: u64) -> Option<(u64, u64, u64)> {
        let holds = |&&(start, end, _): &&(u64, u64, u64)| start <= offset && offset < end;
        self.0.iter().find(holds).copied()
    }
}

impl Functions {
    /// Returns the functions of a file. `symbols` are sorted by value, the best name first where several share one.
    /// A function that has only a frame description is called `module` with its address.
    pub fn new(
        segments: &[LoadSegment],
        symbols: Vec<Symbol>,
        frames: &[FrameRange],
        module: &str,
    ) -> Functions {
        let code = CodeSegments::new(segments);
        let mut functions: Vec<Function> = symbols
            .into_iter()
            .filter_map(|symbol| {
                let (offset, end) = code.file_offset_and_segment_end(symbol.value)?;
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
        let unnamed = unnamed_functions(module, frames, &functions, &code);
        if !unnamed.is_empty() {
            functions.extend(unnamed);
            functions.sort_by_key(|each| each.offset);
        }
        fill_sizes(&mut functions, &code);
        let owned = find_owned_ranges(&functions);
        Functions {
            functions,
            owned,
            code,
        }
    }

    /// Returns all functions by offset; the best name first where several share an offset.
    pub fn functions_by_offset(&self) -> &[Function] {
        &self.functions
    }

    /// Returns disjoint ranges, sorted. Where functions overlap, the one that starts last owns the bytes; after its end
    /// they are again those of the outer function.
    pub fn owned_ranges(&self) -> &[FunctionRange] {
        &self.owned
    }

    /// Returns the function that owns a file offset, with its index.
    pub fn function_at_offset(&self, offset: u64) -> Option<(u32, &Function)> {
        let index = self.owned.partition_point(|each| each.start <= offset);
        let range = self.owned.get(index.checked_sub(1)?)?;
        let function = self.functions.get(range.owner as usize)?;
        (offset < range.end).then_some((range.owner, function))
    }

    /// Returns the address of a file offset; the offset itself if it is not loaded.
    pub fn address_of_offset(&self, offset: u64) -> u64 {
        self.code
            .segment_at_offset(offset)
            .map_or(offset, |(start, _, base)| {
                (offset - start).wrapping_add(base)
            })
    }
}

/// Returns functions for the frame descriptions that have nothing in common with a function in `named`.
fn unnamed_functions(
    module: &str,
    frames: &[FrameRange],
    named: &[Function],
    code: &CodeSegments,
) -> Vec<Function> {
    let owned = find_owned_ranges(named); // none of a function without a size
    let mut unnamed: Vec<_> = frames
        .iter()
        .filter_map(|frame| {
            let (offset, end) = code.file_offset_and_segment_end(frame.address)?;
            let size = frame.size.min(end - offset);
            let next = named.partition_point(|each| each.offset < offset);
            let has_name = named
                .get(next)
                .is_some_and(|each| each.offset < offset + size);
            let last = owned.partition_point(|range| range.start <= offset);
            let is_inside = last
                .checked_sub(1)
                .and_then(|last| owned.get(last))
                .is_some_and(|range| offset < range.end);
            (size > 0 && !has_name && !is_inside).then_some((offset, size, frame.address))
        })
        .collect();
    unnamed.sort_unstable();
    unnamed.dedup_by_key(|&mut (offset, ..)| offset);
    let function = |(offset, size, address)| Function {
        name: format!("{module}+{address:#x}"),
        offset,
        size,
        address,
        binding: SymbolBinding::Frame,
    };
    unnamed.into_iter().map(function).collect()
}

fn fill_sizes(functions: &mut [Function], code: &CodeSegments) {
    // backwards, as a function without a size reaches to the next one
    let (mut here, mut following) = (u64::MAX, u64::MAX);
    for each in functions.iter_mut().rev() {
        if each.offset != here {
            following = here;
            here = each.offset;
        }
        if each.size == 0 {
            let end = code
                .segment_at_offset(each.offset)
                .map_or(each.offset, |(_, end, _)| end);
            each.size = end.min(following) - each.offset;
        }
    }
}

fn find_owned_ranges(functions: &[Function]) -> Vec<FunctionRange> {
    let mut ranges = Vec::new();
    let mut add = |start: u64, end: u64, owner: u32| {
        if start < end {
            ranges.push(FunctionRange { start, end, owner });
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

    fn test_symbol(value: u64, size: u64, name: &str) -> Symbol {
        Symbol {
            value,
            size,
            name: name.to_owned(),
            binding: SymbolBinding::Global,
        }
    }

    fn functions_of_symbols(symbols: Vec<Symbol>) -> Functions {
        functions_of_file(symbols, &[])
    }

    fn functions_of_file(symbols: Vec<Symbol>, frames: &[FrameRange]) -> Functions {
        let segment = |offset, address, file_size, flags| LoadSegment {
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
        Functions::new(&segments, symbols, frames, "a.out")
    }

    #[test]
    fn outer_function_owns_the_bytes_after_an_inner_one() {
        let found = functions_of_symbols(vec![
            test_symbol(0x40_1000, 0x40, "outer"),
            test_symbol(0x40_1010, 0x10, "inner"),
            test_symbol(0x40_1010, 0x10, "alias"),
        ]);
        let name = |offset| {
            found
                .function_at_offset(offset)
                .map(|(_, each)| each.name.as_str())
        };
        assert_eq!(name(0xfff), None);
        assert_eq!(name(0x1000), Some("outer"));
        assert_eq!(name(0x1010), Some("inner"));
        assert_eq!(name(0x101f), Some("inner"));
        assert_eq!(name(0x1020), Some("outer"));
        assert_eq!(name(0x1040), None);
    }

    #[test]
    fn function_without_size_reaches_to_the_next_or_the_end_of_the_segment() {
        let found = functions_of_symbols(vec![
            test_symbol(0x40_1000, 0, "first"),
            test_symbol(0x40_1000, 0, "also"),
            test_symbol(0x40_1080, 0, "last"),
            test_symbol(0x40_0010, 0, "not code"),
        ]);
        let sizes: Vec<_> = found
            .functions_by_offset()
            .iter()
            .map(|each| (each.offset, each.size))
            .collect();
        assert_eq!(sizes, [(0x1000, 0x80), (0x1000, 0x80), (0x1080, 0x180)]);
    }

    #[test]
    fn code_without_symbol_belongs_to_its_frame_description() {
        let frame = |address, size| FrameRange { address, size };
        let frames = [
            frame(0x40_1100, 0x40),
            frame(0x40_1000, 0x20), // of "sized"
            frame(0x40_1010, 0x08), // inside of it
            frame(0x40_1070, 0x20), // "open" is inside
            frame(0x40_1100, 0x40), // again
            frame(0x40_0010, 0x10), // no code
            frame(0x40_1180, 0),
            frame(0x40_11f0, u64::MAX),
        ];
        let symbols = vec![
            test_symbol(0x40_1000, 0x20, "sized"),
            test_symbol(0x40_1080, 0, "open"),
        ];
        let found = functions_of_file(symbols, &frames);
        let functions = found.functions_by_offset().iter();
        let rows: Vec<_> = functions
            .map(|each| (each.name.as_str(), each.offset, each.size))
            .collect();
        let expected = [
            ("sized", 0x1000, 0x20),
            ("open", 0x1080, 0x80),
            ("a.out+0x401100", 0x1100, 0x40),
            ("a.out+0x4011f0", 0x11f0, 0x10),
        ];
        assert_eq!(rows, expected);
        assert!(found.function_at_offset(0x1140).is_none());
    }

    #[test]
    fn addresses_are_those_in_the_file() {
        let found = functions_of_symbols(Vec::new());
        assert_eq!(found.address_of_offset(0x1234), 0x1234);
        assert_eq!(found.address_of_offset(0x1010), 0x40_1010);
        assert!(found.function_at_offset(0x1010).is_none());
    }
}
