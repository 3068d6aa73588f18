//! The folders and files of a program of lines (DWARF 5, 6.2.4). They stay where they are: an entry is looked up when a
//! line is of it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use gimli::{
    constants, AttributeValue, DebugLineStrOffset, DebugStrOffset, DebugStrOffsetsIndex, Dwarf,
    Format, Reader,
};

use super::unit::Unit;
use super::work::{Slice, Stop, Told, Work};

/// Entries of a table from one whose place is known to the next.
const STEP: usize = 16;
/// A longer name is none.
const LONGEST: usize = 1 << 14;

pub(crate) struct Files<'a> {
    version: u16,
    format: Format,
    tables: Slice<'a>,
    read: Option<(Table<'a>, Table<'a>)>,
}

impl<'a> Files<'a> {
    pub fn new(version: u16, format: Format, tables: Slice<'a>) -> Files<'a> {
        Files {
            version,
            format,
            tables,
            read: None,
        }
    }

    /// The name of a file; `None` if there is none, or if it makes no sense.
    pub fn name(
        &mut self,
        file: u64,
        dwarf: &Dwarf<Slice<'a>>,
        unit: &Unit<'a>,
        work: &mut Work<'_>,
    ) -> Told<Option<OsString>> {
        let Some(file) = self.index(file) else {
            return Ok(Some(OsString::new()));
        };
        let tables = match self.read.take() {
            Some(tables) => tables,
            None => self.read_tables(work)?,
        };
        let (folders, files) = self.read.insert(tables);
        let Some(entry) = files.entry(file, self.format, work)? else {
            return Ok(None);
        };
        let folder = match (entry.folder, self.version) {
            (0, _) => None,
            (number, 5) => folders.entry(number, self.format, work)?,
            (number, _) => folders.entry(number - 1, self.format, work)?,
        };
        let parts = [unit.folder(), folder.and_then(|each| each.path), entry.path];
        let mut path = Vec::new();
        for part in parts.into_iter().flatten() {
            let text = unit.text(dwarf, part, work)?;
            if text.len() + path.len() > LONGEST {
                return Ok(None);
            }
            push(&mut path, text.slice());
        }
        Ok(entry.path.map(|_| OsString::from_vec(path)))
    }

    /// Where in its table a file is; before version 5 there is none of number 0.
    fn index(&self, file: u64) -> Option<u64> {
        match self.version {
            5.. => Some(file),
            _ => file.checked_sub(1),
        }
    }

    fn read_tables(&self, work: &mut Work<'_>) -> Told<(Table<'a>, Table<'a>)> {
        let mut input = self.tables;
        let (path, number) = (constants::DW_LNCT_path, constants::DW_LNCT_directory_index);
        let (string, udata) = (constants::DW_FORM_string, constants::DW_FORM_udata);
        let other = constants::DW_LNCT_size;
        let files = [
            (path, string),
            (number, udata),
            (other, udata),
            (other, udata),
        ];
        let mut read = |fixed: &[(gimli::DwLnct, gimli::DwForm)]| match self.version {
            5.. => Table::counted(&mut input, self.format, work),
            _ => Table::ended(&mut input, fixed.to_vec(), self.format, work),
        };
        Ok((read(&files[..1])?, read(&files)?))
    }
}

/// As addr2line and others put a path together.
fn push(path: &mut Vec<u8>, more: &[u8]) {
    let is_windows = |text: &[u8]| text.starts_with(b"\\") || text.get(1..3) == Some(b":\\");
    if more.starts_with(b"/") || is_windows(more) {
        path.clear();
    }
    let separator = if is_windows(path) { b'\\' } else { b'/' };
    if !path.is_empty() && path.last() != Some(&separator) {
        path.push(separator);
    }
    path.extend_from_slice(more);
}

type Layout = Vec<(gimli::DwLnct, gimli::DwForm)>;

/// Folders or files (6.2.4).
struct Table<'a> {
    layout: Layout,
    /// From each `STEP`th entry on.
    places: Vec<u32>,
    entries: Slice<'a>,
    count: u64,
}

struct Entry<'a> {
    path: Option<AttributeValue<Slice<'a>>>,
    folder: u64,
}

impl<'a> Table<'a> {
    /// Of version 5: a layout, and how many there are.
    fn counted(input: &mut Slice<'a>, format: Format, work: &mut Work<'_>) -> Told<Table<'a>> {
        let mut layout = Vec::new();
        for _ in 0..input.read_u8()? {
            let content = u16::try_from(input.read_uleb128()?).map_err(|_| Stop::Broken)?;
            let form = u16::try_from(input.read_uleb128()?).map_err(|_| Stop::Broken)?;
            layout.push((gimli::DwLnct(content), gimli::DwForm(form)));
        }
        let count = input.read_uleb128()?;
        // an entry of nothing would have no end
        if layout.is_empty() && count > 0 {
            return Err(Stop::Broken);
        }
        let mut table = Table::of(layout, *input);
        while table.count < count {
            table.one_more(input, format, work)?;
        }
        Ok(table)
    }

    /// Of the versions before it: up to an entry without a name.
    fn ended(
        input: &mut Slice<'a>,
        layout: Layout,
        format: Format,
        work: &mut Work<'_>,
    ) -> Told<Table<'a>> {
        let mut table = Table::of(layout, *input);
        while input.slice().first().is_some_and(|first| *first != 0) {
            table.one_more(input, format, work)?;
        }
        input.skip(1)?;
        Ok(table)
    }

    fn of(layout: Layout, entries: Slice<'a>) -> Table<'a> {
        Table {
            layout,
            places: Vec::new(),
            entries,
            count: 0,
        }
    }

    fn one_more(&mut self, input: &mut Slice<'a>, format: Format, work: &mut Work<'_>) -> Told<()> {
        let before = input.len();
        if self.count % STEP as u64 == 0 {
            let place = u32::try_from(self.entries.len() - before);
            self.places.push(place.map_err(|_| Stop::Broken)?);
        }
        Entry::read(input, &self.layout, format)?;
        work.take((before - input.len()) as u64)?;
        self.count += 1;
        Ok(())
    }

    fn entry(&self, number: u64, format: Format, work: &mut Work<'_>) -> Told<Option<Entry<'a>>> {
        if number >= self.count {
            return Ok(None);
        }
        let place = self.places.get(number as usize / STEP);
        let mut input = self.entries;
        input.skip(*place.ok_or(Stop::Broken)? as usize)?;
        let before = input.len();
        for _ in 0..number as usize % STEP {
            Entry::read(&mut input, &self.layout, format)?;
        }
        let entry = Entry::read(&mut input, &self.layout, format)?;
        work.take((before - input.len()) as u64)?;
        Ok(Some(entry))
    }
}

impl<'a> Entry<'a> {
    /// Each form has a byte at least.
    fn read(input: &mut Slice<'a>, layout: &Layout, format: Format) -> Told<Entry<'a>> {
        let mut entry = Entry {
            path: None,
            folder: 0,
        };
        for (content, form) in layout {
            let mut number = None;
            let value = match *form {
                constants::DW_FORM_string => {
                    Some(AttributeValue::String(input.read_null_terminated_slice()?))
                }
                constants::DW_FORM_line_strp => Some(AttributeValue::DebugLineStrRef(
                    DebugLineStrOffset(input.read_offset(format)?),
                )),
                constants::DW_FORM_strp => Some(AttributeValue::DebugStrRef(DebugStrOffset(
                    input.read_offset(format)?,
                ))),
                constants::DW_FORM_strp_sup | constants::DW_FORM_GNU_strp_alt => {
                    input.read_offset(format)?;
                    None
                }
                constants::DW_FORM_udata | constants::DW_FORM_strx => {
                    number = Some(input.read_uleb128()?);
                    None
                }
                constants::DW_FORM_data1 | constants::DW_FORM_strx1 => {
                    number = Some(u64::from(input.read_u8()?));
                    None
                }
                constants::DW_FORM_data2 | constants::DW_FORM_strx2 => {
                    number = Some(u64::from(input.read_u16()?));
                    None
                }
                constants::DW_FORM_strx3 => {
                    number = Some(input.read_uint(3)?);
                    None
                }
                constants::DW_FORM_data4 | constants::DW_FORM_strx4 => {
                    number = Some(u64::from(input.read_u32()?));
                    None
                }
                constants::DW_FORM_data8 => {
                    number = Some(input.read_u64()?);
                    None
                }
                constants::DW_FORM_data16 => {
                    input.skip(16)?;
                    None
                }
                constants::DW_FORM_block => {
                    let size = input.read_uleb128()?;
                    input.skip(usize::try_from(size).map_err(|_| Stop::Broken)?)?;
                    None
                }
                _ => return Err(Stop::Broken),
            };
            match *content {
                constants::DW_LNCT_path => {
                    let index = number.and_then(|number| usize::try_from(number).ok());
                    let index = index.map(|number| {
                        AttributeValue::DebugStrOffsetsIndex(DebugStrOffsetsIndex(number))
                    });
                    entry.path = value.or(index);
                }
                constants::DW_LNCT_directory_index => entry.folder = number.unwrap_or(0),
                _ => {}
            }
        }
        Ok(entry)
    }
}

#[cfg(test)]
mod tests {
    use gimli::{EndianSlice, RunTimeEndian};

    use super::*;

    /// Entries that have no bytes would be no end of work.
    #[test]
    fn entries_have_bytes() {
        let count = |bytes: &[u8]| {
            let mut input = EndianSlice::new(bytes, RunTimeEndian::Little);
            let mut work = Work::of(0, &|| false);
            let table = Table::counted(&mut input, Format::Dwarf32, &mut work);
            table.map(|table| table.count)
        };
        let (path, flag_present, string) = (1, 0x19, 8);
        assert_eq!(count(&[1, path, string, 2, 0, 0]), Ok(2));
        assert_eq!(count(&[0, 2]), Err(Stop::Broken));
        assert_eq!(count(&[1, path, flag_present, 2]), Err(Stop::Broken));
        assert_eq!(count(&[0, 0]), Ok(0));
    }
}
