//! What tables that many units share may cost, counted in questions whether to give up.

use std::borrow::Cow;
use std::cell::Cell;
use std::error::Error;

use gimli::{DwarfSections, EndianSlice, RunTimeEndian, SectionId};

use super::*;

const TEXT: u64 = 0x1000;
/// DW_TAG_compile_unit without children, and what it has: DW_AT_stmt_list; DW_AT_ranges, and DW_AT_low_pc.
const LINES: [u8; 8] = [1, 0x11, 0, 0x10, 0x17, 0, 0, 0];
const RANGES: [u8; 12] = [1, 0x11, 0, 0x10, 0x17, 0x55, 0x17, 0x11, 1, 0, 0, 0];
/// DW_AT_stmt_list; DW_AT_comp_dir within the unit.
const FOLDER: [u8; 10] = [1, 0x11, 0, 0x10, 0x17, 0x1B, 8, 0, 0, 0];

/// As many units of this root as make so many bytes.
fn units(root: &[u8], size: usize) -> Vec<u8> {
    let mut unit = Vec::new();
    unit.extend((7 + root.len() as u32).to_le_bytes());
    unit.extend([4, 0, 0, 0, 0, 0, 8]);
    unit.extend(root);
    unit.repeat(size / unit.len())
}

/// A program of version 4 with files and these rows.
fn program(files: &[u8], rows: &[u8]) -> Vec<u8> {
    let mut header = vec![1, 1, 1, 0xFD, 12, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0];
    header.extend(files);
    header.push(0);
    let mut all = ((6 + header.len() + rows.len()) as u32)
        .to_le_bytes()
        .to_vec();
    all.extend([4, 0]);
    all.extend((header.len() as u32).to_le_bytes());
    all.extend(header);
    all.extend(rows);
    all
}

/// Lines from TEXT on, each of a byte.
fn rows(count: usize) -> Vec<u8> {
    let mut rows = vec![0, 9, 2];
    rows.extend(TEXT.to_le_bytes());
    rows.push(1);
    rows.extend(vec![29; count]);
    rows.extend([2, 1, 0, 1, 1]);
    rows
}

type Sections = Vec<(SectionId, Vec<u8>)>;

fn of(abbreviations: &[u8], info: Vec<u8>, line: Vec<u8>, ranges: Vec<u8>) -> Sections {
    vec![
        (SectionId::DebugAbbrev, abbreviations.to_vec()),
        (SectionId::DebugInfo, info),
        (SectionId::DebugLine, line),
        (SectionId::DebugRanges, ranges),
    ]
}

const SIZE: usize = 1 << 18;
const WHOLE: [(u64, u64); 1] = [(0, u64::MAX)];

/// A list of ranges of a byte each, so far from each other.
fn ranges(start: u64, count: usize, step: u64) -> Vec<u8> {
    let ranges = (0..count as u64).flat_map(|at| [start + step * at, start + step * at + 1]);
    ranges.flat_map(u64::to_le_bytes).chain([0; 16]).collect()
}

/// A unit with such a folder.
fn in_folder(folder: &[u8]) -> Vec<u8> {
    let root = [&[1, 0, 0, 0, 0], folder, &[0]].concat();
    units(&root, 11 + root.len())
}

/// A file for each number, and a line of each.
fn files_and_rows(count: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut files, mut all) = (Vec::new(), rows(0));
    all.truncate(11);
    for number in 0..count as u32 {
        let digits = format!("{number:x}");
        files.extend([digits.as_bytes(), &[0; 4]].concat());
        let number = number + 1;
        let set_file = [4, number as u8 | 128, (number >> 7) as u8 | 128];
        all.extend([&set_file[..], &[(number >> 14) as u8, 29]].concat());
    }
    all.extend([2, 1, 0, 1, 1]);
    (files, all)
}

/// Of each up to `SIZE` bytes: all units have the last abbreviation, the same lines, files, ranges that nobody asked
/// for, or attributes of no bytes; a range has many windows; a name has a long folder, or is behind long ones.
fn shared() -> Vec<Sections> {
    let (half, some, few) = (SIZE / 2, SIZE / 32, program(b"a\0\0\0\0", &rows(1)));
    let numbers =
        (0..half / 8).map(|number| [(number % 128) as u8 | 128, 1 + (number >> 7 & 127) as u8]);
    let mut many: Vec<u8> = numbers
        .flat_map(|code| [code[0], code[1], 0x11, 0, 0, 0])
        .collect();
    many.extend([1, 0x11, 0, 0, 0, 0]);
    let mut roots = units(&[1], some);
    for (unit, place) in roots.chunks_exact_mut(12).zip((0_u32..).step_by(6)) {
        unit[6..10].copy_from_slice(&place.to_le_bytes());
    }
    // DW_AT_external, which is there: DW_FORM_flag_present
    let attributes = [&[1, 0x11, 0][..], &[0x3F, 0x19].repeat(2000), &[0; 3]].concat();
    let root = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let line = |files: &[u8], rows: &[u8]| program(files, rows);
    let (files, all) = files_and_rows(1 << 10);
    let long = [&b"x".repeat(half / 16)[..], &[0; 4]].concat().repeat(16);
    let behind = [&long[..], &files].concat();
    vec![
        of(&many, roots, few.clone(), Vec::new()),
        of(
            &LINES,
            units(&root[..5], some),
            line(b"a\0\0\0\0", &rows(half)),
            Vec::new(),
        ),
        of(
            &LINES,
            units(&root[..5], some),
            line(&b"a\0\0\0\0".repeat(half / 5), &rows(1)),
            Vec::new(),
        ),
        of(
            &RANGES,
            units(&root, some),
            few.clone(),
            ranges(TEXT << 20, half / 16, 2),
        ),
        of(&attributes, units(&root[..1], half), Vec::new(), Vec::new()),
        of(
            &RANGES,
            units(&root, 28),
            few,
            [TEXT, TEXT + SIZE as u64]
                .map(u64::to_le_bytes)
                .concat()
                .repeat(half / 16),
        ),
        of(
            &FOLDER,
            in_folder(&b"x".repeat(half)),
            line(&files, &all),
            Vec::new(),
        ),
        of(
            &LINES,
            units(&root[..5], 16).repeat(4),
            line(&behind, &all),
            Vec::new(),
        ),
    ]
}

/// Windows of a byte each, and a byte between them.
fn windows() -> Vec<(u64, u64)> {
    (0..1 << 10)
        .map(|at| (TEXT + 2 * at, TEXT + 2 * at + 1))
        .collect()
}

/// How often is asked whether to give up, at most: as often as a quarter of a megabyte is done, of which there are four
/// bytes for each of the tables, and a megabyte.
fn most_questions(sections: &Sections) -> u64 {
    let bytes: usize = sections.iter().map(|each| each.1.len()).sum();
    (4 * bytes + (1 << 20)).div_ceil(1 << 18) as u64 + 1
}

/// How it ended, how often it asked, and what it had found.
fn read(
    sections: &Sections,
    windows: &[(u64, u64)],
    most: u64,
) -> Result<(Told<()>, u64, Kept), Box<dyn Error>> {
    let bytes: usize = sections.iter().map(|each| each.1.len()).sum();
    let sections = DwarfSections::load(|id| -> Result<Cow<'_, [u8]>, gimli::Error> {
        let found = sections.iter().find(|each| each.0 == id);
        Ok(found.map_or(Cow::default(), |each| Cow::from(&each.1)))
    })?;
    let dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, RunTimeEndian::Little));
    let questions = Cell::new(0);
    let gives_up = || {
        questions.set(questions.get() + 1);
        questions.get() > most
    };
    let asked = Asked {
        windows: &[],
        from: 0,
        most: 1 << 10,
        gives_up: &gives_up,
    };
    let mut kept = Kept::new(&asked);
    let windows = Windows::new(windows.to_vec());
    let mut work = Work::of(bytes as u64, &gives_up);
    let ended = each_unit(&dwarf, &windows, &mut kept, &mut work);
    Ok((ended, questions.get(), kept))
}

#[test]
fn what_many_share_has_an_end() -> Result<(), Box<dyn Error>> {
    for (number, sections) in shared().iter().enumerate() {
        // who would do more gives up
        let (ended, _, kept) = read(sections, &windows(), most_questions(sections))?;
        assert_eq!(ended, Err(Stop::Enough), "{number}");
        assert!(kept.stretches.len() <= 2 << 10, "{number}");
    }
    Ok(())
}

#[test]
fn who_gives_up_is_heard() -> Result<(), Box<dyn Error>> {
    for (number, sections) in shared().iter().enumerate() {
        let (ended, questions, _) = read(sections, &windows(), 2)?;
        assert_eq!((ended, questions), (Err(Stop::GaveUp), 3), "{number}");
    }
    Ok(())
}

/// Also where there is nothing but units.
#[test]
fn who_waits_for_units_is_heard() -> Result<(), Box<dyn Error>> {
    let all = units(&[1], 1 << 20);
    let sections = of(&[1, 0x11, 0, 0, 0, 0], all, Vec::new(), Vec::new());
    let (ended, questions, _) = read(&sections, &WHOLE, u64::MAX)?;
    assert_eq!(ended, Ok(()));
    assert!(questions >= 3);
    Ok(())
}

#[test]
fn parts_of_the_code_of_a_unit_have_an_end() -> Result<(), Box<dyn Error>> {
    const MOST: usize = 1 << 21;
    let root = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let cases = [
        (MOST, 2, Ok(())),
        (MOST + 1, 2, Err(Stop::Enough)),
        // those that touch are one, and so are the same
        (MOST + 1, 1, Ok(())),
        (MOST + 1, 0, Ok(())),
    ];
    for (count, step, expected) in cases {
        let line = program(b"a\0\0\0\0", &rows(1));
        let sections = of(&RANGES, units(&root, 28), line, ranges(TEXT, count, step));
        assert_eq!(read(&sections, &WHOLE, u64::MAX)?.0, expected);
    }
    Ok(())
}

#[test]
fn names_have_an_end() -> Result<(), Box<dyn Error>> {
    let (files, rows) = files_and_rows(3000);
    let folder = b"x".repeat(5000);
    // what nobody asks for may be done, too
    let unused = vec![0; 1 << 22];
    let sections = of(&FOLDER, in_folder(&folder), program(&files, &rows), unused);
    let (ended, _, kept) = read(&sections, &WHOLE, u64::MAX)?;
    let bytes: usize = kept.names.all.iter().map(|name| name.len()).sum();
    assert_eq!((ended, kept.names.left), (Ok(()), 0));
    // each is there twice, in 16 MB
    assert!((6 << 20..8 << 20).contains(&bytes), "{bytes}");
    Ok(())
}

#[test]
fn short_names_have_an_end_too() {
    let mut kept = Kept::new(&Asked {
        windows: &[],
        from: 0,
        most: 1,
        gives_up: &|| false,
    });
    let kept =
        (0..1 << 20).take_while(|name: &u32| kept.names.number(name.to_string().into()).is_some());
    // each takes 64 bytes at least, of 16 MB
    assert!((1 << 17..1 << 18).contains(&kept.count()));
}

#[test]
fn a_long_name_is_none() -> Result<(), Box<dyn Error>> {
    const LONGEST: usize = 1 << 14;
    for (length, count) in [(LONGEST, 1), (LONGEST + 1, 0)] {
        let line = program(b"a\0\0\0\0", &rows(1));
        // and the file
        let folder = b"x".repeat(length - 1);
        let sections = of(&FOLDER, in_folder(&folder), line, Vec::new());
        let (_, _, kept) = read(&sections, &WHOLE, u64::MAX)?;
        let found = (kept.names.all.len(), kept.stretches.len());
        assert_eq!(found, (count, 2 * count));
    }
    Ok(())
}

#[test]
fn a_long_abbreviation_is_none() -> Result<(), Box<dyn Error>> {
    // its end, which is added, is no part of it
    const LONGEST: usize = 1 << 12;
    for (length, count) in [(LONGEST, 2), (LONGEST + 2, 0)] {
        let attributes = [0x3F, 0x19].repeat((length - 7) / 2);
        let mut all = [&LINES[..5], &attributes, &[0, 0]].concat();
        // a byte more, of its code
        if (length - all.len()) == 1 {
            all.splice(..1, [0x81, 0]);
        }
        assert_eq!(all.len(), length);
        let line = program(b"a\0\0\0\0", &rows(1));
        let sections = of(&all, units(&[1, 0, 0, 0, 0], 16), line, Vec::new());
        let (_, _, kept) = read(&sections, &WHOLE, u64::MAX)?;
        assert_eq!(kept.stretches.len(), count);
    }
    Ok(())
}

#[test]
fn those_of_the_lowest_addresses_are_kept() -> Result<(), Box<dyn Error>> {
    let root = [1, 0, 0, 0, 0];
    let sections = of(
        &LINES,
        units(&root, 1 << 6),
        program(b"a\0\0\0\0", &rows(1 << 12)),
        Vec::new(),
    );
    let (ended, _, mut kept) = read(&sections, &WHOLE, u64::MAX)?;
    kept.settle();
    assert_eq!((ended, kept.end), (Ok(()), TEXT + (1 << 10)));
    let places = kept.stretches.iter().map(|each| (each.start, each.line));
    assert!(places.eq((0..1 << 10).map(|at| (TEXT + at, 1 + at as u32))));
    Ok(())
}

#[test]
fn of_several_for_one_address_the_last_counts() {
    // by end, name and line
    let sorted = [(1, "b", 3), (2, "a", 3), (2, "b", 1), (2, "b", 2)];
    for first in sorted {
        for second in sorted {
            let mut kept = Kept::new(&Asked {
                windows: &[],
                from: 0,
                most: 1,
                gives_up: &|| false,
            });
            let b = kept.names.number("b".into());
            let a = kept.names.number("a".into());
            for (end, name, line) in [first, second] {
                let file = if name == "a" { a } else { b }.unwrap();
                kept.stretches.push(LineStretch {
                    start: 0,
                    end,
                    file,
                    line,
                });
            }
            kept.settle();
            let (end, name, line) = first.max(second);
            let file = if name == "a" { a } else { b }.unwrap();
            let expected = LineStretch {
                start: 0,
                end,
                file,
                line,
            };
            assert_eq!(kept.stretches, [expected]);
        }
    }
}
