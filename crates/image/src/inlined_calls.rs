//! Inlined calls: the functions that the compiler put into others, from the DWARF entries of an ELF file.
//!
//! Work stays in proportion to the file, as in `source_lines`: each entry of a unit is read once, and an inlined
//! function once for all its calls.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::rc::Rc;

use gimli::{
    constants, AttributeValue, DebugInfoOffset, Dwarf, EndianSlice, Reader, Section, UnitHeader,
    UnitOffset, UnitSectionOffset,
};
use object::read::ReadRef;

use crate::source_lines::{
    check_cancelled, file_path, load_sections, read_code_ranges, AbbreviationTables, AddressRanges,
    EarlyEnd, Slice,
};

/// Calls and ranges that are kept.
const MAX_CALLS: usize = 1 << 22;
/// Entries that lead from an inlined call to the declaration of its function.
const MAX_REFERENCES: usize = 4;
/// Attributes of the root of a unit.
const MAX_ATTRIBUTES: usize = 1 << 8;
/// How often the headers of line programs are read: units that others refer to can share one.
const MAX_PROGRAM_USES: usize = 1 << 4;
/// Names and paths together, in bytes.
const MAX_NAMES: usize = 1 << 26;
/// Entries between two checks for cancellation.
const CHECK_PERIOD: usize = 1 << 14;
/// No file, or no call.
pub const UNKNOWN: u32 = u32::MAX;

/// The inlined calls of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InlinedCalls {
    pub files: Vec<OsString>,
    pub functions: Vec<InlinedFunction>,
    /// A call is after the call that it is in.
    pub calls: Vec<InlinedCall>,
    /// In the order of the calls.
    pub ranges: Vec<InlinedRange>,
    /// The file has calls that are not read, as they exceed a limit.
    pub is_incomplete: bool,
}

/// A function that was inlined somewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InlinedFunction {
    /// The linkage name, if there is one.
    pub name: String,
    /// Where the function is declared: an index into `InlinedCalls::files` or `UNKNOWN`, and a line.
    pub file: u32,
    pub line: u32,
}

/// A call that was inlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlinedCall {
    /// The inlined call that has this one in its code; `UNKNOWN` for none.
    pub parent: u32,
    /// Index into `InlinedCalls::functions`.
    pub function: u32,
    /// Where the call is: an index into `InlinedCalls::files` or `UNKNOWN`, and a line.
    pub file: u32,
    pub line: u32,
}

/// The addresses from `start` to before `end` belong to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlinedRange {
    pub start: u64,
    pub end: u64,
    /// Index into `InlinedCalls::calls`.
    pub call: u32,
}

/// Returns the inlined calls with code in the given windows. A window is a half-open range of addresses.
/// Returns `None` if the data is no ELF file or the search was cancelled.
pub fn inlined_calls<'d, R: ReadRef<'d>>(
    data: R,
    windows: &[(u64, u64)],
    is_cancelled: &dyn Fn() -> bool,
) -> Option<InlinedCalls> {
    let loaded = load_sections(data)?;
    let dwarf = loaded
        .sections
        .borrow(|bytes| EndianSlice::new(bytes, loaded.endian));
    let mut reader = CallReader {
        dwarf: &dwarf,
        windows: AddressRanges::new(windows.to_vec()),
        is_cancelled,
        tables: AbbreviationTables::new(&dwarf),
        units: Vec::new(),
        other_units: HashMap::new(),
        programs: HashSet::new(),
        program_bytes: dwarf
            .debug_line
            .reader()
            .len()
            .saturating_mul(MAX_PROGRAM_USES),
        range_entries: loaded.range_bytes,
        name_bytes: MAX_NAMES,
        function_numbers: HashMap::new(),
        file_numbers: HashMap::new(),
        found: InlinedCalls::default(),
    };
    let stop = reader.read_units();
    let mut found = reader.found;
    found.is_incomplete = stop.is_err() || !loaded.is_whole;
    (!matches!(stop, Err(EarlyEnd::Cancelled))).then_some(found)
}

type Unit<'a> = gimli::Unit<Slice<'a>>;
type Value<'a> = AttributeValue<Slice<'a>>;

struct CallReader<'a, 'q> {
    dwarf: &'a Dwarf<Slice<'a>>,
    windows: AddressRanges,
    is_cancelled: &'q dyn Fn() -> bool,
    tables: AbbreviationTables,
    /// Headers by offset.
    units: Vec<(usize, UnitHeader<Slice<'a>>)>,
    /// Units that others refer to, by offset.
    other_units: HashMap<usize, Rc<Unit<'a>>>,
    /// Offsets of the line programs of the units so far.
    programs: HashSet<usize>,
    /// Bytes of headers of line programs that may still be read.
    program_bytes: usize,
    /// Entries of range lists that may still be read.
    range_entries: usize,
    name_bytes: usize,
    /// By offset in `.debug_info`.
    function_numbers: HashMap<usize, u32>,
    file_numbers: HashMap<OsString, u32>,
    found: InlinedCalls,
}

impl<'a> CallReader<'a, '_> {
    fn read_units(&mut self) -> Result<(), EarlyEnd> {
        let mut headers = self.dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            if let UnitSectionOffset::DebugInfoOffset(offset) = header.offset() {
                self.units.push((offset.0, header));
            }
        }
        for index in 0..self.units.len() {
            check_cancelled(self.is_cancelled)?;
            let Some(&(_, header)) = self.units.get(index) else {
                break;
            };
            match self.read_unit(header) {
                Ok(()) | Err(EarlyEnd::InvalidUnit) => {}
                Err(stop) => return Err(stop),
            }
        }
        Ok(())
    }

    /// Whether a unit has a line program, and no earlier unit has the same.
    fn is_first_unit_of_program(
        &mut self,
        header: UnitHeader<Slice<'a>>,
    ) -> Result<bool, EarlyEnd> {
        let offset = header.debug_abbrev_offset();
        let abbreviations = self.tables.table_of_unit(self.dwarf, offset)?;
        let mut entries = header.entries_raw(&abbreviations, None)?;
        let root = entries.read_abbreviation()?.ok_or(EarlyEnd::InvalidUnit)?;
        for specification in root.attributes().iter().take(MAX_ATTRIBUTES) {
            let attribute = entries.read_attribute(*specification)?;
            if let (constants::DW_AT_stmt_list, AttributeValue::DebugLineRef(at)) =
                (attribute.name(), attribute.value())
            {
                return Ok(self.programs.insert(at.0));
            }
        }
        Ok(false)
    }

    /// Reads a unit, with the header of its line program.
    fn open_unit(&mut self, header: UnitHeader<Slice<'a>>) -> Result<Unit<'a>, EarlyEnd> {
        let offset = header.debug_abbrev_offset();
        let abbreviations = self.tables.table_of_unit(self.dwarf, offset)?;
        let unit = gimli::Unit::new_with_abbreviations(self.dwarf, header, abbreviations)?;
        let program = unit.line_program.as_ref();
        let size = program.map_or(0, |program| program.header().header_length());
        let left = self.program_bytes.checked_sub(size);
        self.program_bytes = left.ok_or(EarlyEnd::LimitReached)?;
        Ok(unit)
    }

    fn read_unit(&mut self, header: UnitHeader<Slice<'a>>) -> Result<(), EarlyEnd> {
        if !self.is_first_unit_of_program(header)? {
            return Ok(());
        }
        let unit = self.open_unit(header)?;
        let mut entries = unit.entries_raw(None)?;
        // Depths and numbers of the calls around the next entry.
        let mut around: Vec<(isize, u32)> = Vec::new();
        // Entries of a function without wanted code are passed over.
        let mut unwanted: Option<isize> = None;
        let (mut count, mut is_root) = (0_usize, true);
        while !entries.is_empty() {
            count += 1;
            if count % CHECK_PERIOD == 0 {
                check_cancelled(self.is_cancelled)?;
            }
            let depth = entries.next_depth();
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            if unwanted.is_some_and(|outer| depth <= outer) {
                unwanted = None;
            }
            // An entry of any kind ends the calls at its depth and deeper ones.
            while around.last().is_some_and(|last| last.0 >= depth) {
                around.pop();
            }
            let is_call = abbreviation.tag() == constants::DW_TAG_inlined_subroutine;
            let is_function = abbreviation.tag() == constants::DW_TAG_subprogram;
            if unwanted.is_some() || !(is_call || is_function || is_root) {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut attributes = CallAttributes::default();
            for specification in abbreviation.attributes() {
                let attribute = entries.read_attribute(*specification)?;
                attributes.set(attribute.name(), attribute.value());
            }
            let is_wanted = self.overlapping_ranges(&unit, &attributes)?;
            match is_wanted {
                Some(ranges) if ranges.is_empty() && is_root => return Ok(()),
                Some(ranges) if ranges.is_empty() => unwanted = Some(depth),
                Some(ranges) if is_call => {
                    let parent = around.last().map_or(UNKNOWN, |last| last.1);
                    if let Some(call) = self.add_call(&unit, &attributes, parent, &ranges)? {
                        around.push((depth, call));
                    }
                }
                _ => {}
            }
            is_root = false;
        }
        Ok(())
    }

    /// Returns the ranges of an entry if part of them is in the windows, none if not; `None` if the entry has no
    /// ranges.
    fn overlapping_ranges(
        &mut self,
        unit: &Unit<'a>,
        attributes: &CallAttributes<'a>,
    ) -> Result<Option<Vec<(u64, u64)>>, EarlyEnd> {
        let low = attributes.low.map(|low| self.dwarf.attr_address(unit, low));
        let low = low.transpose()?.flatten();
        let budget = &mut self.range_entries;
        let ends = low.zip(attributes.high);
        let mut ranges = read_code_ranges(self.dwarf, unit, attributes.ranges, ends, budget)?;
        if ranges.is_empty() {
            return Ok(None);
        }
        let windows = &self.windows;
        if !ranges
            .iter()
            .any(|&(start, end)| windows.overlaps_range(start, end))
        {
            ranges.clear();
        }
        Ok(Some(ranges))
    }

    fn add_call(
        &mut self,
        unit: &Unit<'a>,
        attributes: &CallAttributes<'a>,
        parent: u32,
        ranges: &[(u64, u64)],
    ) -> Result<Option<u32>, EarlyEnd> {
        // The entries of a supplementary file are not read.
        let origin = attributes.origin;
        let Some(origin) = origin.and_then(|origin| section_offset(unit, origin)) else {
            return Ok(None);
        };
        if self.found.calls.len() + self.found.ranges.len() >= MAX_CALLS {
            return Err(EarlyEnd::LimitReached);
        }
        let function = self.function_number(unit, origin)?;
        let call = self.found.calls.len() as u32;
        let file = self.file_number(unit, attributes.call_file)?;
        self.found.calls.push(InlinedCall {
            parent,
            function,
            file,
            line: attributes.call_line,
        });
        let ranges = ranges.iter().filter(|(start, end)| start < end);
        let ranges = ranges.map(|&(start, end)| InlinedRange { start, end, call });
        self.found.ranges.extend(ranges);
        Ok(Some(call))
    }

    /// Returns the number of a function. `offset`: the offset of its entry, to which an entry of `unit` refers.
    fn function_number(&mut self, unit: &Unit<'a>, offset: usize) -> Result<u32, EarlyEnd> {
        if let Some(&known) = self.function_numbers.get(&offset) {
            return Ok(known);
        }
        let mut function = InlinedFunction {
            file: UNKNOWN,
            ..InlinedFunction::default()
        };
        let (mut next, mut has_linkage_name) = (Some(offset), false);
        for _ in 0..MAX_REFERENCES {
            let Some(at) = next.take() else {
                break;
            };
            let other = self.unit_of_entry(unit, at)?;
            let unit = other.as_deref().unwrap_or(unit);
            let start = unit_start(unit).ok_or(EarlyEnd::InvalidUnit)?;
            let Ok(entry) = unit.entry(UnitOffset(at.saturating_sub(start))) else {
                break;
            };
            let mut attributes = entry.attrs();
            while let Some(attribute) = attributes.next()? {
                let value = attribute.value();
                match attribute.name() {
                    constants::DW_AT_linkage_name | constants::DW_AT_MIPS_linkage_name
                        if !has_linkage_name =>
                    {
                        function.name = self.read_name(unit, value)?;
                        has_linkage_name = true;
                    }
                    constants::DW_AT_name if function.name.is_empty() => {
                        function.name = self.read_name(unit, value)?;
                    }
                    constants::DW_AT_decl_file if function.file == UNKNOWN => {
                        function.file = self.file_number(unit, file_index(value))?;
                    }
                    constants::DW_AT_decl_line if function.line == 0 => {
                        function.line = line_number(value);
                    }
                    constants::DW_AT_abstract_origin | constants::DW_AT_specification => {
                        next = section_offset(unit, value);
                    }
                    _ => {}
                }
            }
        }
        let number = self.found.functions.len() as u32;
        self.found.functions.push(function);
        self.function_numbers.insert(offset, number);
        Ok(number)
    }

    /// Returns the unit of an entry in `.debug_info`; `None` if it is `unit`.
    fn unit_of_entry(
        &mut self,
        unit: &Unit<'a>,
        offset: usize,
    ) -> Result<Option<Rc<Unit<'a>>>, EarlyEnd> {
        let after = self.units.partition_point(|(start, _)| *start <= offset);
        let index = after.checked_sub(1).ok_or(EarlyEnd::InvalidUnit)?;
        let &(start, header) = self.units.get(index).ok_or(EarlyEnd::InvalidUnit)?;
        if unit_start(unit) == Some(start) {
            return Ok(None);
        }
        if let Some(known) = self.other_units.get(&start) {
            return Ok(Some(Rc::clone(known)));
        }
        let opened = Rc::new(self.open_unit(header)?);
        self.other_units.insert(start, Rc::clone(&opened));
        Ok(Some(opened))
    }

    fn read_name(&mut self, unit: &Unit<'a>, value: Value<'a>) -> Result<String, EarlyEnd> {
        let name = self.dwarf.attr_string(unit, value)?;
        let left = self.name_bytes.checked_sub(name.len());
        self.name_bytes = left.ok_or(EarlyEnd::LimitReached)?;
        Ok(name.to_string_lossy().into_owned())
    }

    fn file_number(&mut self, unit: &Unit<'a>, index: Option<u64>) -> Result<u32, EarlyEnd> {
        let header = unit.line_program.as_ref().map(|program| program.header());
        let Some((header, index)) = header.zip(index) else {
            return Ok(UNKNOWN);
        };
        let Some(file) = header.file(index) else {
            return Ok(UNKNOWN);
        };
        let Some(path) = file_path(self.dwarf, unit, header, file)? else {
            return Ok(UNKNOWN);
        };
        if let Some(&known) = self.file_numbers.get(&path) {
            return Ok(known);
        }
        let left = self.name_bytes.checked_sub(2 * path.len());
        self.name_bytes = left.ok_or(EarlyEnd::LimitReached)?;
        let number = self.found.files.len() as u32;
        self.found.files.push(path.clone());
        self.file_numbers.insert(path, number);
        Ok(number)
    }
}

/// Attributes of an inlined call, or of a function or unit.
#[derive(Default)]
struct CallAttributes<'a> {
    low: Option<Value<'a>>,
    high: Option<Value<'a>>,
    ranges: Option<Value<'a>>,
    origin: Option<Value<'a>>,
    call_file: Option<u64>,
    call_line: u32,
}

impl<'a> CallAttributes<'a> {
    fn set(&mut self, name: gimli::DwAt, value: Value<'a>) {
        match name {
            constants::DW_AT_low_pc => self.low = Some(value),
            constants::DW_AT_high_pc => self.high = Some(value),
            constants::DW_AT_ranges => self.ranges = Some(value),
            constants::DW_AT_abstract_origin => self.origin = Some(value),
            constants::DW_AT_call_file => self.call_file = file_index(value),
            constants::DW_AT_call_line => self.call_line = line_number(value),
            _ => {}
        }
    }
}

fn file_index(value: Value<'_>) -> Option<u64> {
    match value {
        AttributeValue::FileIndex(index) => Some(index),
        value => value.udata_value(),
    }
}

fn line_number(value: Value<'_>) -> u32 {
    let line = value.udata_value();
    line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0)
}

fn unit_start(unit: &Unit<'_>) -> Option<usize> {
    match unit.header.offset() {
        UnitSectionOffset::DebugInfoOffset(offset) => Some(offset.0),
        _ => None,
    }
}

/// Returns where in `.debug_info` the entry is that an attribute refers to.
fn section_offset(unit: &Unit<'_>, value: Value<'_>) -> Option<usize> {
    match value {
        AttributeValue::UnitRef(UnitOffset(offset)) => unit_start(unit)?.checked_add(offset),
        AttributeValue::DebugInfoRef(DebugInfoOffset(offset)) => Some(offset),
        _ => None,
    }
}
