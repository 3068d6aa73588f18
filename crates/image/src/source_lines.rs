//! Source file and line of instructions, from the DWARF line tables of an ELF file.
//!
//! `gimli` reads units, range lists and line programs. This module selects the rows of some addresses, cuts them into
//! ranges that do not overlap, and keeps at most twice as many as the caller asked for.
//!
//! Units of a hostile file can share large tables, or let them overlap. Work stays in proportion to the file, since
//! each abbreviation table ends where the next begins, a line program belongs to the first unit that refers to it, and
//! no more of line programs and range lists is read than their sections have.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use gimli::{
    constants, Abbreviations, AttributeValue, DebugAbbrev, DebugAbbrevOffset, Dwarf, DwarfSections,
    EndianSlice, FileEntry, Reader, RunTimeEndian, Section, SectionId, UnitHeader, UnitType,
};
use object::read::ReadRef;
use object::{CompressedData, CompressionFormat, Object, ObjectSection};
use ruzstd::decoding::StreamingDecoder;

pub(crate) type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// Bytes that the compressed sections of a file may unpack to, together; more if the file itself is larger.
const MAX_UNPACKED: u64 = 1 << 27;
/// Attributes of the root of a unit; compilers write about twenty.
const MAX_ATTRIBUTES: usize = 1 << 8;
/// Bytes of the path of a source file.
const MAX_PATH: usize = 1 << 14;
/// Bytes of all paths together, with `PATH_COST` for each.
const MAX_PATHS: usize = 1 << 24;
const PATH_COST: usize = 1 << 6;
/// Rows of a line program between two checks for cancellation.
const CHECK_PERIOD: usize = 1 << 12;
const SECTIONS: [SectionId; 9] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// Which lines of a file `source_lines` returns.
#[derive(Clone, Copy)]
pub struct LineQuery<'a> {
    /// Half-open ranges of addresses as in the file, in any order.
    pub windows: &'a [(u64, u64)],
    /// Ranges that begin before this address are left out.
    pub start: u64,
    /// Number of ranges to return, those of the lowest addresses.
    pub max_ranges: usize,
    /// Called every few thousand rows.
    pub is_cancelled: &'a dyn Fn() -> bool,
}

/// Ranges of addresses with the source line of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceLines {
    pub files: Vec<OsString>,
    /// In order of address, not overlapping.
    pub ranges: Vec<LineRange>,
    /// Where the first range begins that exceeds `LineQuery::max_ranges`.
    pub next: Option<u64>,
    /// The file has lines that are not read, as they exceed a limit or a section cannot be unpacked.
    pub is_incomplete: bool,
}

/// The addresses from `start` to before `end` were compiled from one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineRange {
    pub start: u64,
    pub end: u64,
    /// Index into `SourceLines::files`.
    pub file: u32,
    pub line: u32,
}

/// Returns source file and line of the instruction at `address`, from the same range as `source_lines` returns.
pub fn source_line<'d, R: ReadRef<'d>>(
    data: R,
    address: u64,
    is_cancelled: &dyn Fn() -> bool,
) -> Option<(OsString, u32)> {
    let query = LineQuery {
        windows: &[(address, address.checked_add(1)?)],
        start: 0,
        max_ranges: 1 << 10,
        is_cancelled,
    };
    let mut lines = source_lines(data, &query)?;
    let mut ranges = lines.ranges.iter();
    let range = ranges.find(|range| (range.start..range.end).contains(&address))?;
    Some((lines.files.swap_remove(range.file as usize), range.line))
}

/// Returns the ranges that overlap the windows of a query; they can reach beyond. Of several that begin at one address,
/// the last by end, file and line counts. `None` if the data is no ELF file or the query was cancelled.
pub fn source_lines<'d, R: ReadRef<'d>>(data: R, query: &LineQuery<'_>) -> Option<SourceLines> {
    let loaded = load_sections(data)?;
    let dwarf = loaded
        .sections
        .borrow(|bytes| EndianSlice::new(bytes, loaded.endian));
    let windows = query.windows.iter();
    let windows = windows.map(|&(start, end)| (start.max(query.start), end));
    let mut reader = LineReader {
        dwarf: &dwarf,
        windows: AddressRanges::new(windows.collect()),
        is_cancelled: query.is_cancelled,
        tables: AbbreviationTables::new(&dwarf),
        programs: HashSet::new(),
        program_bytes: dwarf.debug_line.reader().len(),
        range_entries: loaded.range_bytes,
        rows: RowCollector::new(query.start, query.max_ranges),
    };
    let stop = reader.read_units();
    let rows = reader.rows;
    match stop {
        Err(EarlyEnd::Cancelled) => None,
        stop => Some(rows.into_source_lines(stop.is_ok() && loaded.is_whole)),
    }
}

/// The DWARF sections of an ELF file.
pub(crate) struct LoadedSections<'d> {
    pub(crate) sections: DwarfSections<Cow<'d, [u8]>>,
    pub(crate) endian: RunTimeEndian,
    /// Bytes of the sections with range lists.
    pub(crate) range_bytes: usize,
    /// False if a section cannot be unpacked; it counts as empty.
    pub(crate) is_whole: bool,
}

pub(crate) fn load_sections<'d, R: ReadRef<'d>>(data: R) -> Option<LoadedSections<'d>> {
    let mut bytes_left = MAX_UNPACKED.max(data.len().ok()?);
    let file = object::File::parse(data).ok()?;
    let endian = match file.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    };
    let (mut is_whole, mut range_bytes) = (true, 0);
    let sections = DwarfSections::load(|id| -> Result<_, gimli::Error> {
        let section = file.section_by_name(id.name());
        let Some(section) = section.filter(|_| SECTIONS.contains(&id)) else {
            return Ok(Cow::default());
        };
        let stored = section.compressed_data().ok();
        let bytes = stored.and_then(|stored| decompress_section(stored, &mut bytes_left));
        is_whole &= bytes.is_some();
        let bytes = bytes.unwrap_or_default();
        if matches!(id, SectionId::DebugRanges | SectionId::DebugRngLists) {
            range_bytes += bytes.len();
        }
        Ok(bytes)
    });
    Some(LoadedSections {
        sections: sections.ok()?,
        endian,
        range_bytes,
        is_whole,
    })
}

fn decompress_section<'d>(
    stored: CompressedData<'d>,
    bytes_left: &mut u64,
) -> Option<Cow<'d, [u8]>> {
    if stored.format == CompressionFormat::None {
        return Some(Cow::Borrowed(stored.data));
    }
    let size = stored.uncompressed_size;
    *bytes_left = bytes_left.checked_sub(size)?;
    if stored.format != CompressionFormat::Zstandard {
        return stored.decompress().ok();
    }
    // `decompress` does not bound what a Zstandard frame unpacks to
    let mut plain = Vec::new();
    let frame = StreamingDecoder::new(stored.data).ok()?;
    frame.take(size + 1).read_to_end(&mut plain).ok()?;
    (plain.len() as u64 == size).then_some(Cow::Owned(plain))
}

/// Why reading ends early.
pub(crate) enum EarlyEnd {
    InvalidUnit,
    LimitReached,
    Cancelled,
}

impl From<gimli::Error> for EarlyEnd {
    fn from(_: gimli::Error) -> EarlyEnd {
        EarlyEnd::InvalidUnit
    }
}

/// Returns an error if reading was cancelled.
pub(crate) fn check_cancelled(is_cancelled: &dyn Fn() -> bool) -> Result<(), EarlyEnd> {
    match is_cancelled() {
        true => Err(EarlyEnd::Cancelled),
        false => Ok(()),
    }
}

struct LineReader<'a, 'q> {
    dwarf: &'a Dwarf<Slice<'a>>,
    windows: AddressRanges,
    is_cancelled: &'q dyn Fn() -> bool,
    tables: AbbreviationTables,
    /// Offsets of the line programs of the units so far.
    programs: HashSet<usize>,
    /// Bytes of line programs that may still be read.
    program_bytes: usize,
    /// Entries of range lists that may still be read.
    range_entries: usize,
    rows: RowCollector,
}

impl<'a> LineReader<'a, '_> {
    fn read_units(&mut self) -> Result<(), EarlyEnd> {
        let mut headers = self.dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            check_cancelled(self.is_cancelled)?;
            match self.read_unit(header) {
                Ok(()) | Err(EarlyEnd::InvalidUnit) => {}
                Err(stop) => return Err(stop),
            }
        }
        Ok(())
    }

    fn read_unit(&mut self, header: UnitHeader<Slice<'a>>) -> Result<(), EarlyEnd> {
        // units of these kinds share the line program of a compile unit
        if matches!(
            header.type_(),
            UnitType::Type { .. } | UnitType::SplitType { .. } | UnitType::Partial
        ) {
            return Ok(());
        }
        let abbreviations = self
            .tables
            .table_of_unit(self.dwarf, header.debug_abbrev_offset())?;
        let mut entries = header.entries_raw(&abbreviations, None)?;
        let root = entries.read_abbreviation()?.ok_or(EarlyEnd::InvalidUnit)?;
        if root.tag() == constants::DW_TAG_partial_unit || root.attributes().len() > MAX_ATTRIBUTES
        {
            return Ok(());
        }
        let (mut program, mut has_low, mut high, mut ranges) = (None, false, None, None);
        for specification in root.attributes() {
            let attribute = entries.read_attribute(*specification)?;
            match (attribute.name(), attribute.value()) {
                (constants::DW_AT_stmt_list, AttributeValue::DebugLineRef(at)) => {
                    program = Some(at.0);
                }
                (constants::DW_AT_low_pc, _) => has_low = true,
                (constants::DW_AT_high_pc, value) => high = Some(value),
                (constants::DW_AT_ranges, value) => ranges = Some(value),
                _ => {}
            }
        }
        if !program.is_some_and(|at| self.programs.insert(at)) {
            return Ok(());
        }
        let unit = gimli::Unit::new_with_abbreviations(self.dwarf, header, abbreviations)?;
        let high = high.filter(|_| has_low);
        let code = self.code_ranges(&unit, ranges, high)?;
        self.read_program(unit, code)
    }

    /// Returns the ranges of a unit's code; `None` if the unit does not have them.
    fn code_ranges(
        &mut self,
        unit: &gimli::Unit<Slice<'a>>,
        ranges: Option<AttributeValue<Slice<'a>>>,
        high: Option<AttributeValue<Slice<'a>>>,
    ) -> Result<Option<AddressRanges>, EarlyEnd> {
        let low_and_high = high.map(|high| (unit.low_pc, high));
        let budget = &mut self.range_entries;
        let code = read_code_ranges(self.dwarf, unit, ranges, low_and_high, budget)?;
        let code = AddressRanges::new(code);
        Ok((!code.0.is_empty()).then_some(code))
    }

    fn read_program(
        &mut self,
        mut unit: gimli::Unit<Slice<'a>>,
        code: Option<AddressRanges>,
    ) -> Result<(), EarlyEnd> {
        let Some(program) = unit.line_program.take() else {
            return Ok(());
        };
        let left = self
            .program_bytes
            .checked_sub(program.header().unit_length());
        self.program_bytes = left.ok_or(EarlyEnd::LimitReached)?;
        let is_wanted = |start, end| {
            self.windows.overlaps_range(start, end)
                && code
                    .as_ref()
                    .is_none_or(|code| code.overlaps_range(start, end))
        };
        if code
            .as_ref()
            .is_some_and(|code| !self.windows.overlaps_any_of(code))
        {
            return Ok(());
        }
        let mut rows = program.rows();
        let mut numbers = HashMap::new();
        let (mut last, mut count): (Option<(u64, u64, u32)>, usize) = (None, 0);
        while let Some((header, row)) = rows.next_row()? {
            count += 1;
            if count % CHECK_PERIOD == 0 {
                check_cancelled(self.is_cancelled)?;
            }
            let end = row.address();
            let line = row.line().map_or(0, |line| line.get() as u32);
            let next = (!row.end_sequence()).then_some((end, row.file_index(), line));
            // of several rows at one address, the last counts
            let last = std::mem::replace(&mut last, next).filter(|last| last.0 < end);
            let Some((start, file, line)) = last.filter(|last| last.2 != 0) else {
                continue;
            };
            let Some(entry) = header.file(file) else {
                continue;
            };
            if self.rows.has_room(start) && is_wanted(start, end) {
                let number = match numbers.entry(file) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        let path = file_path(self.dwarf, &unit, header, entry)?;
                        *new.insert(self.rows.file_number(path))
                    }
                };
                self.rows.add_line_range(start, end, number, line);
            }
        }
        Ok(())
    }
}

/// Returns the ranges of an entry's code, from `DW_AT_ranges`, or from `DW_AT_low_pc` and `DW_AT_high_pc`. Takes the
/// entries of range lists from `budget`.
pub(crate) fn read_code_ranges<'a>(
    dwarf: &Dwarf<Slice<'a>>,
    unit: &gimli::Unit<Slice<'a>>,
    ranges: Option<AttributeValue<Slice<'a>>>,
    low_and_high: Option<(u64, AttributeValue<Slice<'a>>)>,
    budget: &mut usize,
) -> Result<Vec<(u64, u64)>, EarlyEnd> {
    let list = ranges.map(|value| dwarf.attr_ranges(unit, value));
    let mut code = Vec::new();
    if let Some(mut list) = list.transpose()?.flatten() {
        while let Some(range) = list.next()? {
            *budget = budget.checked_sub(1).ok_or(EarlyEnd::LimitReached)?;
            code.push((range.begin, range.end));
        }
    } else if let Some((low, high)) = low_and_high {
        let end = match high {
            AttributeValue::Udata(size) => Some(low.wrapping_add(size)),
            high => dwarf.attr_address(unit, high)?,
        };
        code.extend(end.map(|end| (low, end)));
    }
    Ok(code)
}

/// Returns the path of a source file; `None` if it is too long.
pub(crate) fn file_path<'a>(
    dwarf: &Dwarf<Slice<'a>>,
    unit: &gimli::Unit<Slice<'a>>,
    header: &gimli::LineProgramHeader<Slice<'a>>,
    file: &FileEntry<Slice<'a>>,
) -> Result<Option<OsString>, EarlyEnd> {
    let mut path = PathBuf::new();
    let directory = match file.directory_index() {
        0 => None,
        _ => file.directory(header),
    };
    let directory = directory.map(|value| dwarf.attr_string(unit, value));
    let name = dwarf.attr_string(unit, file.path_name())?;
    for part in [unit.comp_dir, directory.transpose()?, Some(name)] {
        let part = part.map_or(&[][..], |part| part.slice());
        if part.len() + path.as_os_str().len() > MAX_PATH {
            return Ok(None);
        }
        if !part.is_empty() {
            path.push(OsStr::from_bytes(part));
        }
    }
    Ok(Some(path.into()))
}

/// The abbreviation tables of all units, by offset. Those that several units share are kept.
pub(crate) struct AbbreviationTables {
    unit_counts: BTreeMap<usize, usize>,
    shared: HashMap<usize, Option<Arc<Abbreviations>>>,
}

impl AbbreviationTables {
    pub(crate) fn new(dwarf: &Dwarf<Slice<'_>>) -> AbbreviationTables {
        let mut unit_counts = BTreeMap::new();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            *unit_counts
                .entry(header.debug_abbrev_offset().0)
                .or_default() += 1;
        }
        AbbreviationTables {
            unit_counts,
            shared: HashMap::new(),
        }
    }

    pub(crate) fn table_of_unit(
        &mut self,
        dwarf: &Dwarf<Slice<'_>>,
        offset: DebugAbbrevOffset,
    ) -> Result<Arc<Abbreviations>, EarlyEnd> {
        if let Some(known) = self.shared.get(&offset.0) {
            return known.clone().ok_or(EarlyEnd::InvalidUnit);
        }
        let bytes = dwarf.debug_abbrev.reader().slice();
        let mut later = self.unit_counts.range(offset.0 + 1..);
        let end = later.next().map_or(bytes.len(), |(next, _)| *next);
        let section = DebugAbbrev::new(bytes.get(..end).unwrap_or(bytes), RunTimeEndian::Little);
        let table = section.abbreviations(offset).ok().map(Arc::new);
        if self
            .unit_counts
            .get(&offset.0)
            .is_some_and(|count| *count > 1)
        {
            self.shared.insert(offset.0, table.clone());
        }
        table.ok_or(EarlyEnd::InvalidUnit)
    }
}

/// Half-open ranges of addresses, sorted, none of which touch.
pub(crate) struct AddressRanges(pub(crate) Vec<(u64, u64)>);

impl AddressRanges {
    /// `ranges` are in any order; empty ones are dropped.
    pub(crate) fn new(mut ranges: Vec<(u64, u64)>) -> AddressRanges {
        ranges.retain(|(start, end)| start < end);
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let touch = next.0 <= last.1;
            if touch {
                last.1 = last.1.max(next.1);
            }
            touch
        });
        AddressRanges(ranges)
    }

    /// Whether part of `start..end` is in one of the ranges.
    pub(crate) fn overlaps_range(&self, start: u64, end: u64) -> bool {
        let first = self.0.partition_point(|range| range.1 <= start);
        self.0.get(first).is_some_and(|range| range.0 < end)
    }

    /// Whether any of these ranges overlaps one of the others.
    fn overlaps_any_of(&self, other: &AddressRanges) -> bool {
        other
            .0
            .iter()
            .any(|&(start, end)| self.overlaps_range(start, end))
    }
}

/// Collects the ranges of the lowest addresses, at most twice as many as are wanted at a time.
struct RowCollector {
    ranges: Vec<LineRange>,
    files: Vec<OsString>,
    numbers: HashMap<OsString, u32>,
    path_bytes: usize,
    has_long_paths: bool,
    start: u64,
    /// Ranges from here on are left out.
    end: u64,
    max_ranges: usize,
}

impl RowCollector {
    fn new(start: u64, max_ranges: usize) -> RowCollector {
        RowCollector {
            ranges: Vec::new(),
            files: Vec::new(),
            numbers: HashMap::new(),
            path_bytes: MAX_PATHS,
            has_long_paths: false,
            start,
            end: u64::MAX,
            max_ranges: max_ranges.max(1),
        }
    }

    fn has_room(&self, start: u64) -> bool {
        (self.start..self.end).contains(&start)
    }

    fn add_line_range(&mut self, start: u64, end: u64, file: Option<u32>, line: u32) {
        let Some(file) = file else {
            return;
        };
        let range = LineRange {
            start,
            end,
            file,
            line,
        };
        self.ranges.push(range);
        if self.ranges.len() / 2 > self.max_ranges {
            self.keep_lowest();
        }
    }

    /// Returns the number of a path; `None` for one that exceeds a limit.
    fn file_number(&mut self, path: Option<OsString>) -> Option<u32> {
        self.has_long_paths |= path.is_none();
        let path = path?;
        if let Some(number) = self.numbers.get(&path) {
            return Some(*number);
        }
        // the path is in the table and in the list
        let left = self.path_bytes.checked_sub(2 * path.len() + PATH_COST);
        self.path_bytes = left.unwrap_or(0);
        left?;
        let number = u32::try_from(self.files.len()).ok()?;
        self.numbers.insert(path.clone(), number);
        self.files.push(path);
        Some(number)
    }

    /// Sorts, keeps one range for each start address, and no more than `max_ranges`.
    fn keep_lowest(&mut self) {
        let files = &self.files;
        let order = |range: &LineRange| (range.end, files.get(range.file as usize), range.line);
        self.ranges.sort_unstable_by_key(|range| range.start);
        // paths can be long: each is compared once
        self.ranges.dedup_by(|next, last| {
            let is_same = next.start == last.start;
            if is_same && order(next) > order(last) {
                *last = *next;
            }
            is_same
        });
        if let Some(first) = self.ranges.get(self.max_ranges) {
            self.end = first.start;
            self.ranges.truncate(self.max_ranges);
        }
    }

    fn into_source_lines(mut self, is_complete: bool) -> SourceLines {
        self.keep_lowest();
        // units of a broken file can overlap
        let mut next = self.end;
        for range in self.ranges.iter_mut().rev() {
            range.end = range.end.min(next);
            next = range.start;
        }
        SourceLines {
            files: self.files,
            ranges: self.ranges,
            next: (self.end < u64::MAX).then_some(self.end),
            is_incomplete: !is_complete || self.has_long_paths || self.path_bytes == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ranges_with_one_start_the_last_by_end_path_and_line_counts() {
        let sorted = [(1, "b", 3), (2, "a", 3), (2, "b", 1), (2, "b", 2)];
        for first in sorted {
            for second in sorted {
                let mut rows = RowCollector::new(0, 1);
                rows.file_number(Some("b".into()));
                for (end, path, line) in [first, second] {
                    let file = rows.file_number(Some(path.into()));
                    rows.add_line_range(0, end, file, line);
                }
                let found = rows.into_source_lines(true);
                let [range] = found.ranges[..] else {
                    panic!("{found:?}");
                };
                let path = found.files[range.file as usize].to_str().unwrap();
                assert_eq!((range.end, path, range.line), first.max(second));
            }
        }
    }

    #[test]
    fn ranges_of_the_lowest_addresses_are_kept_in_bounded_memory() {
        let mut rows = RowCollector::new(0, 100);
        let file = rows.file_number(Some("a".into()));
        for start in (0..10_000).rev() {
            if rows.has_room(start) {
                rows.add_line_range(start, start + 1, file, 1);
            }
            assert!(rows.ranges.len() <= 201);
        }
        let found = rows.into_source_lines(true);
        assert!(found.ranges.iter().map(|range| range.start).eq(0..100));
        assert_eq!((found.next, found.is_incomplete), (Some(100), false));
    }

    #[test]
    fn paths_take_bounded_memory() {
        for (length, least, most) in [(1, 1 << 17, 1 << 18), (5000, 1600, 1700)] {
            let mut rows = RowCollector::new(0, 1);
            let paths = (0..1 << 20).map(|number| format!("{number:0length$}").into());
            let count =
                paths.take_while(|path: &OsString| rows.file_number(Some(path.clone())).is_some());
            let count = count.count();
            assert!((least..most).contains(&count), "{count}");
            assert!(rows.into_source_lines(true).is_incomplete);
        }
    }
}
