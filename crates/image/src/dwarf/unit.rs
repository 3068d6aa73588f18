//! The root of a unit: where its code is, and the program of its lines.

use std::collections::HashMap;
use std::sync::Arc;

use gimli::{
    constants, Abbreviations, AttributeValue, DebugAbbrev, DebugAddrBase, DebugLineOffset,
    DebugLocListsBase, DebugRngListsBase, DebugStrOffsetsBase, Dwarf, LittleEndian, Reader,
    Section, UnitHeader, UnitType,
};

use super::work::{Slice, Stop, Told, Work};

/// Bytes of the abbreviation of a root: a compiler's has twenty.
const LONGEST: usize = 1 << 12;
/// Abbreviations that are remembered; then all are forgotten.
const MOST_KNOWN: usize = 1 << 8;
/// Parts of its code that a unit may tell, those that touch counted as one.
const MOST_RANGES: usize = 1 << 21;
/// What an entry of a list of ranges costs, and a unit.
const ENTRY: u64 = 4;
const UNIT: u64 = 8;

type Value<'a> = AttributeValue<Slice<'a>>;

/// Abbreviations of roots, by the place of their table and their code. Of the others, which may be many more, none is
/// kept.
#[derive(Default)]
pub(crate) struct Declared {
    known: HashMap<(usize, u64), Arc<Abbreviations>>,
}

impl Declared {
    /// That of the root of a unit, alone in a table.
    fn of(
        &mut self,
        dwarf: &Dwarf<Slice<'_>>,
        header: &UnitHeader<Slice<'_>>,
        work: &mut Work<'_>,
    ) -> Told<Arc<Abbreviations>> {
        let start = header.offset().as_debug_info_offset();
        let mut root = *dwarf.debug_info.reader();
        root.skip(start.ok_or(Stop::Broken)?.0 + header.header_size())?;
        let table = header.debug_abbrev_offset().0;
        let key = (table, root.read_uleb128()?);
        if let Some(known) = self.known.get(&key) {
            return Ok(Arc::clone(known));
        }
        let mut rest = *dwarf.debug_abbrev.reader();
        rest.skip(table)?;
        let mut declaration = found(rest, key.1, work)?.to_vec();
        declaration.push(0);
        let alone = DebugAbbrev::new(&declaration, LittleEndian);
        let alone = Arc::new(alone.abbreviations(gimli::DebugAbbrevOffset(0))?);
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(key, Arc::clone(&alone));
        Ok(alone)
    }
}

/// The bytes of the abbreviation with this code (DWARF 5, 7.5.3).
fn found<'a>(table: Slice<'a>, wanted: u64, work: &mut Work<'_>) -> Told<&'a [u8]> {
    let mut rest = table;
    loop {
        let before = rest;
        let code = rest.read_uleb128()?;
        if code == 0 {
            return Err(Stop::Broken);
        }
        rest.read_uleb128()?;
        rest.skip(1)?;
        loop {
            let (name, form) = (rest.read_uleb128()?, rest.read_uleb128()?);
            if form == u64::from(constants::DW_FORM_implicit_const.0) {
                rest.read_sleb128()?;
            }
            if (name, form) == (0, 0) {
                break;
            }
        }
        let size = before.len() - rest.len();
        work.take(size as u64)?;
        if code == wanted {
            let all = before.slice().get(..size.min(LONGEST + 1));
            return all.filter(|all| all.len() <= LONGEST).ok_or(Stop::Broken);
        }
    }
}

/// Parts of the addresses, in order, disjoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Windows(Vec<(u64, u64)>);

impl Windows {
    /// Each from the first up to the second.
    pub fn new(mut parts: Vec<(u64, u64)>) -> Windows {
        parts.retain(|(begin, end)| begin < end);
        parts.sort_unstable();
        parts.dedup_by(|next, last| {
            let touch = next.0 <= last.1;
            if touch {
                last.1 = last.1.max(next.1);
            }
            touch
        });
        Windows(parts)
    }

    /// The lowest address, if there is any.
    pub fn first(&self) -> Option<u64> {
        self.0.first().map(|part| part.0)
    }

    /// Whether some of it is within; `hint` is where the last was found.
    #[inline]
    pub fn meet(&self, begin: u64, end: u64, hint: &mut usize) -> bool {
        let meets = |part: &(u64, u64)| begin < part.1 && part.0 < end;
        if self.0.get(*hint).is_some_and(meets) {
            return true;
        }
        *hint = self.0.partition_point(|part| part.1 <= begin);
        self.0.get(*hint).is_some_and(meets)
    }

    /// What of it is within, in order.
    fn within(&self, begin: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.0.partition_point(|part| part.1 <= begin);
        let parts = self.0.get(first..).unwrap_or(&[]).iter();
        let parts = parts.take_while(move |part| part.0 < end);
        parts.map(move |part| (part.0.max(begin), part.1.min(end)))
    }
}

/// What is known of a unit of code.
pub(crate) struct Unit<'a> {
    unit: gimli::Unit<Slice<'a>>,
    folder: Option<Value<'a>>,
    low: Option<Value<'a>>,
    high: Option<Value<'a>>,
    ranges: Option<Value<'a>>,
    /// Where the program of its lines is.
    pub program: Option<DebugLineOffset>,
}

impl<'a> Unit<'a> {
    /// `None` if it is of something else than code.
    pub fn read(
        dwarf: &Dwarf<Slice<'a>>,
        header: UnitHeader<Slice<'a>>,
        declared: &mut Declared,
        work: &mut Work<'_>,
    ) -> Told<Option<Unit<'a>>> {
        work.take(UNIT)?;
        if matches!(
            header.type_(),
            UnitType::Type { .. } | UnitType::SplitType { .. } | UnitType::Partial
        ) {
            return Ok(None);
        }
        let abbreviations = declared.of(dwarf, &header, work)?;
        let (encoding, file) = (header.encoding(), dwarf.file_type);
        let unit = gimli::Unit {
            abbreviations: Arc::clone(&abbreviations),
            name: None,
            comp_dir: None,
            low_pc: 0,
            str_offsets_base: DebugStrOffsetsBase::default_for_encoding_and_file(encoding, file),
            addr_base: DebugAddrBase(0),
            loclists_base: DebugLocListsBase::default_for_encoding_and_file(encoding, file),
            rnglists_base: DebugRngListsBase::default_for_encoding_and_file(encoding, file),
            line_program: None,
            dwo_id: None,
            header,
        };
        let mut found = Unit {
            unit,
            folder: None,
            low: None,
            high: None,
            ranges: None,
            program: None,
        };
        let header = found.unit.header;
        let mut entries = header.entries_raw(&abbreviations, None)?;
        let Some(root) = entries.read_abbreviation()? else {
            return Err(Stop::Broken);
        };
        if root.tag() == constants::DW_TAG_partial_unit {
            return Ok(None);
        }
        work.take(root.attributes().len() as u64)?;
        for specification in root.attributes() {
            let attribute = entries.read_attribute(*specification)?;
            found.has(attribute.name(), attribute.value());
        }
        let low = found.low.map(|low| dwarf.attr_address(&found.unit, low));
        found.unit.low_pc = low.transpose()?.flatten().unwrap_or(0);
        Ok(Some(found))
    }

    fn has(&mut self, name: gimli::DwAt, value: Value<'a>) {
        match (name, value) {
            (constants::DW_AT_comp_dir, folder) => self.folder = Some(folder),
            (constants::DW_AT_low_pc, low) => self.low = Some(low),
            (constants::DW_AT_high_pc, high) => self.high = Some(high),
            (constants::DW_AT_ranges, ranges) => self.ranges = Some(ranges),
            (constants::DW_AT_stmt_list, AttributeValue::DebugLineRef(program)) => {
                self.program = Some(program);
            }
            (constants::DW_AT_str_offsets_base, AttributeValue::DebugStrOffsetsBase(base)) => {
                self.unit.str_offsets_base = base;
            }
            (
                constants::DW_AT_addr_base | constants::DW_AT_GNU_addr_base,
                AttributeValue::DebugAddrBase(base),
            ) => self.unit.addr_base = base,
            (
                constants::DW_AT_rnglists_base | constants::DW_AT_GNU_ranges_base,
                AttributeValue::DebugRngListsBase(base),
            ) => self.unit.rnglists_base = base,
            _ => {}
        }
    }

    pub fn address_size(&self) -> u8 {
        self.unit.header.address_size()
    }

    /// The folder that names of files begin in.
    pub fn folder(&self) -> Option<Value<'a>> {
        self.folder
    }

    pub fn text(
        &self,
        dwarf: &Dwarf<Slice<'a>>,
        value: Value<'a>,
        work: &mut Work<'_>,
    ) -> Told<Slice<'a>> {
        let text = dwarf.attr_string(&self.unit, value)?;
        work.take(text.len() as u64)?;
        Ok(text)
    }

    /// What of its code is in windows: all of these if it does not say where its code is.
    pub fn code_in(
        &self,
        dwarf: &Dwarf<Slice<'a>>,
        windows: &Windows,
        work: &mut Work<'_>,
    ) -> Told<Windows> {
        let (mut code, mut most, mut says) = (Vec::new(), 1 << 10, false);
        let mut add = |begin: u64, end: u64, work: &mut Work<'_>| {
            work.take(ENTRY)?;
            says |= begin < end;
            for part in windows.within(begin, end) {
                work.take(1)?;
                code.push(part);
                if code.len() >= most {
                    code = Windows::new(std::mem::take(&mut code)).0;
                    most = most.max(2 * code.len());
                }
                if code.len() > MOST_RANGES {
                    return Err(Stop::Enough);
                }
            }
            Ok(())
        };
        let offset = self
            .ranges
            .map(|ranges| dwarf.attr_ranges_offset(&self.unit, ranges));
        if let Some(offset) = offset.transpose()?.flatten() {
            let mut ranges = dwarf.ranges(&self.unit, offset)?;
            while let Some(entry) = ranges.next_raw()? {
                let range = ranges.convert_raw(entry)?;
                let (begin, end) = range.map_or((0, 0), |range| (range.begin, range.end));
                add(begin, end, work)?;
            }
        } else if let (Some(_), Some(high)) = (self.low, self.high) {
            let low = self.unit.low_pc;
            let end = match high {
                AttributeValue::Udata(size) => low.wrapping_add(size),
                high => dwarf.attr_address(&self.unit, high)?.unwrap_or(low),
            };
            add(low, end, work)?;
        }
        Ok(match says {
            true => Windows::new(code),
            false => windows.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use gimli::{EndianSlice, RunTimeEndian};

    use super::*;

    /// Each may be 200 times as large as its unit.
    #[test]
    fn few_abbreviations_are_remembered() -> Told<()> {
        const COUNT: u32 = 1000;
        const MOST: usize = 256;
        // DW_TAG_compile_unit of nothing
        let tables = [1, 0x11, 0, 0, 0, 0].repeat(COUNT as usize);
        let mut units = Vec::new();
        for place in (0..6 * COUNT).step_by(6) {
            units.extend([8, 0, 0, 0, 4, 0]);
            units.extend(place.to_le_bytes());
            units.extend([8, 1]);
        }
        let dwarf = Dwarf::load(|id| -> Result<_, gimli::Error> {
            let bytes: &[u8] = match id {
                gimli::SectionId::DebugAbbrev => &tables,
                gimli::SectionId::DebugInfo => &units,
                _ => &[],
            };
            Ok(EndianSlice::new(bytes, RunTimeEndian::Little))
        })?;
        let (mut declared, mut most) = (Declared::default(), 0);
        let mut work = Work::of(0, &|| false);
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let unit = Unit::read(&dwarf, header, &mut declared, &mut work)?;
            assert!(unit.is_some());
            most = most.max(declared.known.len());
        }
        assert_eq!(most, MOST);
        Ok(())
    }
}
