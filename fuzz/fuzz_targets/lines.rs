//! Any bytes as an ELF file with DWARF: lines, functions, their order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtit_image::elf::{read_elf_frames, read_elf_headers, read_elf_symbols};
use rtit_image::{
    inlined_calls, join_symbols, source_line, source_lines, Functions, LineQuery, SourceLines,
};

fn lines_of(data: &[u8], start: u64, max_ranges: usize) -> Option<SourceLines> {
    let query = LineQuery {
        windows: &[(0, u64::MAX)],
        start,
        max_ranges,
        is_cancelled: &|| false,
    };
    source_lines(data, &query)
}

fuzz_target!(|data: &[u8]| {
    if let Some(lines) = lines_of(data, 0, 1 << 16) {
        let mut end = 0;
        for each in &lines.ranges {
            assert!(each.start >= end && each.start < each.end, "{each:?}");
            assert!(each.line > 0 && (each.file as usize) < lines.files.len());
            end = each.end;
        }
        for each in lines.ranges.iter().take(20) {
            let _ = source_line(data, each.start, &|| false);
        }
        // parts of the addresses, as far as they are gone over
        let (mut from, mut end) = (0, 0);
        for _ in 0..20 {
            let Some(part) = lines_of(data, from, 3) else {
                break;
            };
            assert!(part.ranges.len() <= 3);
            for each in &part.ranges {
                assert!(each.start >= end.max(from) && each.start < each.end);
                end = each.end;
            }
            let Some(next) = part.next else {
                break;
            };
            assert!(next > from && next >= end);
            from = next;
        }
    }
    if let Some(found) = inlined_calls(data, &[(0, u64::MAX)], &|| false) {
        for (each, at) in found.calls.iter().zip(0..) {
            assert!(each.parent < at || each.parent == u32::MAX);
            assert!((each.function as usize) < found.functions.len());
        }
        for each in &found.ranges {
            assert!(each.start < each.end && (each.call as usize) < found.calls.len());
        }
    }
    let named = read_elf_symbols(data).unwrap_or_default();
    let frames = read_elf_frames(data).unwrap_or_default();
    let twice = join_symbols(named.clone(), named.clone());
    assert!(twice.len() <= 2 * named.len() && twice.is_sorted_by_key(|symbol| symbol.value));
    if let Ok(elf) = read_elf_headers(data) {
        let functions = Functions::new(&elf.segments, named, &frames, "file");
        let known = |index: u32| (index as usize) < functions.functions_by_offset().len();
        assert!(functions
            .functions_by_offset()
            .is_sorted_by_key(|each| each.offset));
        let mut end = 0;
        for each in functions.owned_ranges() {
            assert!(each.start >= end && each.start < each.end && known(each.owner));
            assert!(functions
                .function_at_offset(each.start)
                .is_some_and(|(owner, _)| owner == each.owner));
            end = each.end;
        }
    }
});
