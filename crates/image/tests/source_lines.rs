//! Lines of source of a real program as addr2line has them: most are those of Rust's library.

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use addr2line::gimli::{DwarfSections, EndianSlice, RunTimeEndian};
use addr2line::Context;
use object::{Object, ObjectSection};
use rtit_image::elf::ReadCache;
use rtit_image::{source_line, source_lines, Asked, LineStretch, SourceLines};

const WHOLE: [(u64, u64); 1] = [(0, u64::MAX)];

fn asked(windows: &[(u64, u64)], from: u64, most: usize) -> Asked<'_> {
    Asked {
        windows,
        from,
        most,
        gives_up: &|| false,
    }
}

fn program() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (source, program) = (folder.join("lines.rs"), folder.join("lines"));
        std::fs::write(
            &source,
            "fn main() {\n    println!(\"{:?}\", std::env::args());\n}\n",
        )
        .expect("a source");
        let mut compiler = Command::new("rustc");
        compiler.args(["-g", "--edition=2021", "-o"]);
        let made = compiler.arg(&program).arg(&source).status();
        assert!(made.is_ok_and(|status| status.success()));
        program
    })
}

fn data() -> Result<Vec<u8>, Box<dyn Error>> {
    Ok(std::fs::read(program())?)
}

type Named<'a> = (u64, u64, &'a str, u32);

fn named(found: &SourceLines) -> Vec<Named<'_>> {
    let row = |each: &LineStretch| {
        let file = found.files[each.file as usize].to_str().unwrap_or("");
        (each.start, each.end, file, each.line)
    };
    found.stretches.iter().map(row).collect()
}

#[test]
fn they_are_those_of_addr2line() -> Result<(), Box<dyn Error>> {
    let data = data()?;
    let file = object::File::parse(data.as_slice())?;
    let text = file.section_by_name(".text").ok_or("no code")?;
    let text = (text.address(), text.address() + text.size());
    let sections = DwarfSections::load(|id| {
        let section = file.section_by_name(id.name());
        section.map_or(Ok(Default::default()), |each| each.uncompressed_data())
    })?;
    let context = Context::from_dwarf(
        sections.borrow(|bytes| EndianSlice::new(bytes, RunTimeEndian::Little)),
    )?;
    let mut theirs = Vec::new();
    for (start, size, place) in context.find_location_range(text.0, text.1)? {
        if let (Some(file), Some(line), 1..) = (place.file, place.line, size) {
            theirs.push((start, start + size, file, line));
        }
    }
    theirs.sort_unstable();
    theirs.dedup();
    let ours =
        source_lines(data.as_slice(), &asked(&[text], 0, usize::MAX)).ok_or("no ELF file")?;
    assert!(!ours.is_cut && ours.next.is_none());
    assert!(theirs.len() > 1000);
    assert_eq!(named(&ours), theirs);
    let (start, end, file, line) = theirs[theirs.len() / 2];
    for address in [start, end - 1] {
        let here = source_line(data.as_slice(), address, &|| false);
        assert_eq!(here, Some((file.into(), line)));
    }
    Ok(())
}

#[test]
fn parts_are_the_whole() -> Result<(), Box<dyn Error>> {
    let file = ReadCache::new(File::open(program())?);
    let whole = source_lines(&file, &asked(&WHOLE, 0, usize::MAX)).ok_or("no ELF file")?;
    let most = whole.stretches.len() / 5;
    let (mut parts, mut from) = (Vec::new(), Some(0));
    while let Some(start) = from {
        let part = source_lines(&file, &asked(&WHOLE, start, most)).ok_or("no ELF file")?;
        assert!(part.stretches.len() <= most && !part.is_cut);
        from = part.next;
        parts.push(part);
    }
    assert!(parts.len() >= 5);
    let joined: Vec<_> = parts.iter().flat_map(named).collect();
    assert_eq!(joined, named(&whole));
    Ok(())
}

#[test]
fn a_window_has_what_touches_it() -> Result<(), Box<dyn Error>> {
    let data = data()?;
    let whole =
        source_lines(data.as_slice(), &asked(&WHOLE, 0, usize::MAX)).ok_or("no ELF file")?;
    // code that the linker has left out is at 0, one over the other
    let rows: Vec<_> = named(&whole)
        .into_iter()
        .filter(|row| row.0 > 1 << 16)
        .collect();
    let middle = rows.len() / 2;
    let windows = [
        (rows[middle].0, rows[middle + 3].0 + 1),
        (rows[7].1 - 1, rows[7].1),
    ];
    let some =
        source_lines(data.as_slice(), &asked(&windows, 0, usize::MAX)).ok_or("no ELF file")?;
    let touches = |row: &&Named<'_>| windows.iter().any(|each| row.0 < each.1 && each.0 < row.1);
    let expected: Vec<_> = rows.iter().filter(touches).copied().collect();
    assert!(expected.len() >= 5);
    assert_eq!(named(&some), expected);
    Ok(())
}

#[test]
fn who_gives_up_gets_nothing() -> Result<(), Box<dyn Error>> {
    let gives_up = Asked {
        gives_up: &|| true,
        ..asked(&WHOLE, 0, 1)
    };
    assert!(source_lines(data()?.as_slice(), &gives_up).is_none());
    Ok(())
}
