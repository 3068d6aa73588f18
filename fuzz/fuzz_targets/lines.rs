//! Any bytes as an ELF file with DWARF: lines, functions, their order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtit_image::elf::{read, symbols};
use rtit_image::{joined, source_line, source_lines, Functions};

fuzz_target!(|data: &[u8]| {
    if let Some(lines) = source_lines(data, &[(0, u64::MAX)]) {
        let mut end = 0;
        for each in &lines.stretches {
            assert!(each.start >= end && each.start < each.end, "{each:?}");
            assert!(each.line > 0 && (each.file as usize) < lines.files.len());
            end = each.end;
        }
        for each in lines.stretches.iter().take(20) {
            let _ = source_line(data, each.start);
        }
    }
    let named = symbols(data).unwrap_or_default();
    let twice = joined(named.clone(), named.clone());
    assert!(twice.len() <= 2 * named.len() && twice.is_sorted_by_key(|symbol| symbol.value));
    if let Ok(elf) = read(data) {
        let functions = Functions::new(&elf.segments, named);
        let known = |index: u32| (index as usize) < functions.all().len();
        assert!(functions.all().is_sorted_by_key(|each| each.offset));
        let mut end = 0;
        for each in functions.owned() {
            assert!(each.start >= end && each.start < each.end && known(each.owner));
            assert!(functions
                .at(each.start)
                .is_some_and(|(owner, _)| owner == each.owner));
            end = each.end;
        }
    }
});
