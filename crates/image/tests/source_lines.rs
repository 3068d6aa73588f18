//! Source lines of a real program, most of them of Rust's library, against addr2line of binutils.

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use object::{Object, ObjectSection};
use rtit_image::elf::ReadCache;
use rtit_image::{source_line, source_lines, LineQuery, LineRange, SourceLines};

const WHOLE: [(u64, u64); 1] = [(0, u64::MAX)];

fn line_query(windows: &[(u64, u64)], start: u64, max_ranges: usize) -> LineQuery<'_> {
    LineQuery {
        windows,
        start,
        max_ranges,
        is_cancelled: &|| false,
    }
}

fn test_program() -> &'static Path {
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

fn test_program_bytes() -> Result<Vec<u8>, Box<dyn Error>> {
    Ok(std::fs::read(test_program())?)
}

type Named<'a> = (u64, u64, &'a str, u32);

fn with_file_names(found: &SourceLines) -> Vec<Named<'_>> {
    let row = |each: &LineRange| {
        let file = found.files[each.file as usize].to_str().unwrap_or("");
        (each.start, each.end, file, each.line)
    };
    found.ranges.iter().map(row).collect()
}

type SourceLine = Option<(String, u32)>;

/// Returns file and line of each address as addr2line of binutils has them.
fn lines_of_addr2line(addresses: &[u64]) -> Result<Vec<SourceLine>, Box<dyn Error>> {
    let input = test_program().with_extension("addresses");
    let lines: String = addresses.iter().map(|at| format!("{at:#x}\n")).collect();
    std::fs::write(&input, lines)?;
    let mut command = Command::new("addr2line");
    let output = command
        .arg("-e")
        .arg(test_program())
        .stdin(File::open(input)?);
    let output = String::from_utf8(output.output()?.stdout)?;
    let parse = |line: &str| {
        let (path, line) = line.split(" (").next()?.rsplit_once(':')?;
        let line = line.parse().ok().filter(|line| *line != 0)?;
        Some((path.to_owned(), line))
    };
    Ok(output.lines().map(parse).collect())
}

#[test]
fn lines_match_addr2line() -> Result<(), Box<dyn Error>> {
    let data = test_program_bytes()?;
    let file = object::File::parse(data.as_slice())?;
    let text = file.section_by_name(".text").ok_or("no code")?;
    let text = (text.address(), text.address() + text.size());
    let found =
        source_lines(data.as_slice(), &line_query(&[text], 0, usize::MAX)).ok_or("no ELF")?;
    assert!(!found.is_incomplete && found.next.is_none() && found.ranges.len() > 1000);
    let ranges = with_file_names(&found);
    let ours = |address: u64| {
        let index = ranges.partition_point(|range| range.0 <= address);
        let (_, end, file, line) = ranges[..index].last()?;
        (address < *end).then(|| ((*file).to_owned(), *line))
    };
    let addresses: Vec<u64> = (text.0..text.1).step_by(7).collect();
    assert_eq!(
        addresses.iter().copied().map(ours).collect::<Vec<_>>(),
        lines_of_addr2line(&addresses)?
    );
    let (start, end, file, line) = ranges[ranges.len() / 2];
    for address in [start, end - 1] {
        let here = source_line(data.as_slice(), address, &|| false);
        assert_eq!(here, Some((file.into(), line)));
    }
    Ok(())
}

#[test]
fn chunked_query_has_the_lines_of_one_query() -> Result<(), Box<dyn Error>> {
    let file = ReadCache::new(File::open(test_program())?);
    let whole = source_lines(&file, &line_query(&WHOLE, 0, usize::MAX)).ok_or("no ELF file")?;
    let most = whole.ranges.len() / 5;
    let (mut parts, mut from) = (Vec::new(), Some(0));
    while let Some(start) = from {
        let part = source_lines(&file, &line_query(&WHOLE, start, most)).ok_or("no ELF file")?;
        assert!(part.ranges.len() <= most && !part.is_incomplete);
        from = part.next;
        parts.push(part);
    }
    assert!(parts.len() >= 5);
    let joined: Vec<_> = parts.iter().flat_map(with_file_names).collect();
    assert_eq!(joined, with_file_names(&whole));
    Ok(())
}

#[test]
fn query_returns_the_ranges_that_overlap_its_window() -> Result<(), Box<dyn Error>> {
    let data = test_program_bytes()?;
    let whole =
        source_lines(data.as_slice(), &line_query(&WHOLE, 0, usize::MAX)).ok_or("no ELF file")?;
    // code that the linker has left out is at 0, one over the other
    let rows: Vec<_> = with_file_names(&whole)
        .into_iter()
        .filter(|row| row.0 > 1 << 16)
        .collect();
    let middle = rows.len() / 2;
    let windows = [
        (rows[middle].0, rows[middle + 3].0 + 1),
        (rows[7].1 - 1, rows[7].1),
    ];
    let some =
        source_lines(data.as_slice(), &line_query(&windows, 0, usize::MAX)).ok_or("no ELF file")?;
    let touches = |row: &&Named<'_>| windows.iter().any(|each| row.0 < each.1 && each.0 < row.1);
    let expected: Vec<_> = rows.iter().filter(touches).copied().collect();
    assert!(expected.len() >= 5);
    assert_eq!(with_file_names(&some), expected);
    Ok(())
}

#[test]
fn cancelled_query_has_no_lines() -> Result<(), Box<dyn Error>> {
    let cancelled = LineQuery {
        is_cancelled: &|| true,
        ..line_query(&WHOLE, 0, 1)
    };
    assert!(source_lines(test_program_bytes()?.as_slice(), &cancelled).is_none());
    Ok(())
}
