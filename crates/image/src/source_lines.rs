//! Which line of source an instruction was made from, by DWARF.

use std::collections::HashMap;
use std::ffi::OsString;

use gimli::Dwarf;
use object::read::ReadRef;

use crate::dwarf::{with_dwarf, Declared, Program, Row, Slice, Stop, Told, Unit, Windows, Work};

/// Bytes of the names of files that are kept, and what one takes beside them.
const MOST_NAMES: usize = 1 << 24;
const NAME: usize = 1 << 6;
/// Lines of one unit whose names are remembered.
const MOST_REMEMBERED: usize = 1 << 12;

/// What is asked of the lines of a file.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Addresses as the file numbers them, from the first up to the second of each; any order.
    pub windows: &'a [(u64, u64)],
    /// Lines that begin before are left out.
    pub from: u64,
    /// So many stretches are enough, those of the lowest addresses: memory is in proportion to that.
    pub most: usize,
    /// Called now and then.
    pub gives_up: &'a dyn Fn() -> bool,
}

/// The lines of a file's code: stretches of addresses with the line that each was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceLines {
    pub files: Vec<OsString>,
    /// In the order of the addresses, not overlapping.
    pub stretches: Vec<LineStretch>,
    /// Where the first begins that is not among them.
    pub next: Option<u64>,
    /// The file tells more than what was asked for should cost, or some of it does not unpack.
    pub is_cut: bool,
}

/// The addresses from `start` up to `end` were made from a line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineStretch {
    pub start: u64,
    pub end: u64,
    /// Index into the files.
    pub file: u32,
    pub line: u32,
}

/// Source file and line of the instruction at `address`, as `source_lines` has them.
pub fn source_line<'d, R: ReadRef<'d>>(
    data: R,
    address: u64,
    gives_up: &dyn Fn() -> bool,
) -> Option<(OsString, u32)> {
    let windows = [(address, address.checked_add(1)?)];
    let asked = Asked {
        windows: &windows,
        from: 0,
        most: 1 << 10,
        gives_up,
    };
    let mut found = source_lines(data, &asked)?;
    let mut stretches = found.stretches.iter();
    let here = stretches.find(|each| (each.start..each.end).contains(&address))?;
    Some((found.files.swap_remove(here.file as usize), here.line))
}

/// The lines of all addresses in windows that an ELF file tells of, in stretches that may reach beyond; of several for
/// one address the last by end, file and line. Nothing if `gives_up` says so. `None`: it is no ELF file.
pub fn source_lines<'d, R: ReadRef<'d>>(data: R, asked: &Asked<'_>) -> Option<SourceLines> {
    let from_there_on = |part: &(u64, u64)| (part.0.max(asked.from), part.1);
    let windows = Windows::new(asked.windows.iter().map(from_there_on).collect());
    let read = |dwarf: &Dwarf<Slice<'_>>, work: &mut Work<'_>| {
        let mut kept = Kept::new(asked);
        let ended = each_unit(dwarf, &windows, &mut kept, work);
        (kept, ended)
    };
    let ((mut kept, ended), is_whole) = with_dwarf(data, asked.gives_up, read)?;
    kept.settle();
    let mut found = SourceLines {
        files: kept.names.all,
        stretches: kept.stretches,
        next: (kept.end < u64::MAX).then_some(kept.end),
        is_cut: !is_whole || kept.names.left == 0 || ended == Err(Stop::Enough),
    };
    disjoint(&mut found.stretches, kept.end);
    (ended != Err(Stop::GaveUp)).then_some(found)
}

fn each_unit(
    dwarf: &Dwarf<Slice<'_>>,
    windows: &Windows,
    kept: &mut Kept,
    work: &mut Work<'_>,
) -> Told<()> {
    let mut declared = Declared::default();
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        let unit = match Unit::read(dwarf, header, &mut declared, work) {
            Ok(Some(unit)) => unit,
            Ok(None) | Err(Stop::Broken) => continue,
            Err(stop) => return Err(stop),
        };
        match of_unit(dwarf, &unit, windows, kept, work) {
            Ok(()) | Err(Stop::Broken) => {}
            Err(stop) => return Err(stop),
        }
    }
    Ok(())
}

fn of_unit<'a>(
    dwarf: &Dwarf<Slice<'a>>,
    unit: &Unit<'a>,
    windows: &Windows,
    kept: &mut Kept,
    work: &mut Work<'_>,
) -> Told<()> {
    let Some(at) = unit.program else {
        return Ok(());
    };
    let code = unit.code_in(dwarf, windows, work)?;
    if code.first().is_none_or(|first| first >= kept.end) {
        return Ok(());
    }
    let program = Program::read(dwarf, at, unit)?;
    let mut files = program.files();
    let (mut hint, mut numbers) = (0, HashMap::new());
    program.rows(work, |row, work| {
        if !kept.wants(&row) || !code.meet(row.start, row.end, &mut hint) {
            return Ok(());
        }
        let file = match numbers.get(&row.file) {
            Some(file) => *file,
            None => {
                let name = files.name(row.file, dwarf, unit, work)?;
                let file = name.and_then(|name| kept.names.number(name));
                if numbers.len() >= MOST_REMEMBERED {
                    numbers.clear();
                }
                numbers.insert(row.file, file);
                file
            }
        };
        if let Some(file) = file {
            kept.put(&row, file);
        }
        Ok(())
    })
}

/// The stretches that are wanted, of which there are never more than twice as many as were asked for.
struct Kept {
    stretches: Vec<LineStretch>,
    names: Names,
    from: u64,
    /// Those from here on are not kept.
    end: u64,
    most: usize,
}

impl Kept {
    fn new(asked: &Asked<'_>) -> Kept {
        Kept {
            stretches: Vec::new(),
            names: Names {
                all: Vec::new(),
                numbers: HashMap::new(),
                left: MOST_NAMES,
            },
            from: asked.from,
            end: u64::MAX,
            most: asked.most.max(1),
        }
    }

    fn wants(&self, row: &Row) -> bool {
        row.line != 0 && row.start >= self.from && row.start < self.end
    }

    fn put(&mut self, row: &Row, file: u32) {
        if self.stretches.len() / 2 >= self.most {
            self.settle();
            if row.start >= self.end {
                return;
            }
        }
        self.stretches.push(LineStretch {
            start: row.start,
            end: row.end,
            file,
            line: row.line,
        });
    }

    /// One for each address, in order, and no more than were asked for.
    fn settle(&mut self) {
        let names = &self.names.all;
        let order = |each: &LineStretch| (each.end, names.get(each.file as usize), each.line);
        self.stretches.sort_unstable_by_key(|each| each.start);
        // names may be long: each is compared once
        self.stretches.dedup_by(|next, last| {
            let same = next.start == last.start;
            if same && order(next) > order(last) {
                *last = *next;
            }
            same
        });
        if let Some(first) = self.stretches.get(self.most) {
            self.end = first.start;
            self.stretches.truncate(self.most);
        }
    }
}

/// Names of files, each once.
struct Names {
    all: Vec<OsString>,
    numbers: HashMap<OsString, u32>,
    left: usize,
}

impl Names {
    /// `None` if there is no room for another one.
    fn number(&mut self, name: OsString) -> Option<u32> {
        if let Some(number) = self.numbers.get(&name) {
            return Some(*number);
        }
        // in the table and in the list
        let left = self.left.checked_sub(2 * name.len() + NAME);
        self.left = left.unwrap_or(0);
        left?;
        let number = u32::try_from(self.all.len()).ok()?;
        self.numbers.insert(name.clone(), number);
        self.all.push(name);
        Some(number)
    }
}

/// Cuts stretches where the next begins, the last at `end`: units may overlap in a broken file.
fn disjoint(stretches: &mut [LineStretch], end: u64) {
    let mut next = end;
    for each in stretches.iter_mut().rev() {
        each.end = each.end.min(next);
        next = each.start;
    }
}

#[cfg(test)]
mod tests;
