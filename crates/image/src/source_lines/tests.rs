//! What tables that many units share may cost, counted in questions whether to give up.

use std::borrow::Cow;
use std::cell::Cell;
use std::error::Error;

use gimli::{DwarfSections, EndianSlice, RunTimeEndian, SectionId};

use super::*;
use crate::dwarf::most_questions;

const TEXT: u64 = 0x1000;
/// DW_TAG_compile_unit without children, and what it has: DW_AT_stmt_list; DW_AT_ranges, and DW_AT_low_pc.
const LINES: [u8; 8] = [1, 0x11, 0, 0x10, 0x17, 0, 0, 0];
const RANGES: [u8; 12] = [1, 0x11, 0, 0x10, 0x17, 0x55, 0x17, 0x11, 1, 0, 0, 0];

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

const SIZE: usize = 1 << 20;

/// Of each about `SIZE` bytes: all units have the last abbreviation, the same lines, files, ranges.
fn shared() -> Vec<Sections> {
    let (half, few) = (SIZE / 2, program(b"a\0\0\0\0", &rows(1)));
    let numbers =
        (0..half / 8).map(|number| [(number % 128) as u8 | 128, 1 + (number >> 7 & 127) as u8]);
    let mut many: Vec<u8> = numbers
        .flat_map(|code| [code[0], code[1], 0x11, 0, 0, 0])
        .collect();
    many.extend([1, 0x11, 0, 0, 0, 0]);
    let mut roots = units(&[1], half);
    for (unit, place) in roots.chunks_exact_mut(12).zip((0_u32..).step_by(6)) {
        unit[6..10].copy_from_slice(&place.to_le_bytes());
    }
    let ranges = (0..half as u64 / 16).flat_map(|at| [TEXT + 2 * at, TEXT + 2 * at + 1]);
    let ranges: Vec<u8> = ranges.flat_map(u64::to_le_bytes).chain([0; 16]).collect();
    let root = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    vec![
        of(&many, roots, few.clone(), Vec::new()),
        of(
            &LINES,
            units(&root[..5], half),
            program(b"a\0\0\0\0", &rows(half)),
            Vec::new(),
        ),
        of(
            &LINES,
            units(&root[..5], half),
            program(&b"a\0\0\0\0".repeat(half / 5), &rows(1)),
            Vec::new(),
        ),
        of(&RANGES, units(&root, half), few, ranges),
    ]
}

/// How it ended, how often it asked, and what it had found.
fn read(sections: &Sections, most: u64) -> Result<(Told<()>, u64, Kept), Box<dyn Error>> {
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
    let windows = Windows::new(vec![(0, u64::MAX)]);
    let mut work = Work::of(SIZE as u64, &gives_up);
    let ended = each_unit(&dwarf, &windows, &mut kept, &mut work);
    Ok((ended, questions.get(), kept))
}

#[test]
fn what_many_share_has_an_end() -> Result<(), Box<dyn Error>> {
    for (number, sections) in shared().iter().enumerate() {
        let (ended, questions, kept) = read(sections, u64::MAX)?;
        assert_eq!(ended, Err(Stop::Enough), "{number}");
        assert!(
            questions <= most_questions(SIZE as u64),
            "{number}: {questions}"
        );
        assert!(kept.stretches.len() <= 2 << 10, "{number}");
    }
    Ok(())
}

#[test]
fn who_gives_up_is_heard() -> Result<(), Box<dyn Error>> {
    for (number, sections) in shared().iter().enumerate() {
        let (ended, questions, _) = read(sections, 2)?;
        assert_eq!((ended, questions), (Err(Stop::GaveUp), 3), "{number}");
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
    let (ended, _, mut kept) = read(&sections, u64::MAX)?;
    kept.settle();
    assert_eq!((ended, kept.end), (Ok(()), TEXT + (1 << 10)));
    let places = kept.stretches.iter().map(|each| (each.start, each.line));
    assert!(places.eq((0..1 << 10).map(|at| (TEXT + at, 1 + at as u32))));
    Ok(())
}
