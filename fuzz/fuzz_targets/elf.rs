//! Any bytes as an ELF file, in memory and through the cache that files are read with.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use rtit_image::elf::{read_elf_frames, read_elf_headers, read_elf_symbols, ReadCache};
use rtit_image::Symbol;

fuzz_target!(|data: &[u8]| {
    let cache = ReadCache::new(Cursor::new(data));
    let elf = read_elf_headers(data);
    if let Ok(elf) = &elf {
        let mut cached =
            read_elf_headers(&cache).expect("what can be read in memory can be read from a file");
        // Some notes that are found through the cache are not in memory.
        if elf.build_id.is_none() {
            cached.build_id = None;
        }
        assert_eq!(*elf, cached);
        // A table takes room in the file: nothing here is larger than what was read for it.
        assert!(elf.segments.len() * 32 <= data.len());
        assert!(elf.build_id.as_ref().map_or(0, Vec::len) <= data.len());
    }

    let named = read_elf_symbols(data);
    // An empty table outside of the file is an error of the slice alone: the cache has nothing to read.
    assert!(named.is_err() || named == read_elf_symbols(&cache));
    let frames = read_elf_frames(data);
    assert!(frames.is_err() || frames == read_elf_frames(&cache));
    for error in elf.err().iter().chain(named.as_ref().err()) {
        assert!(!error.to_string().is_empty());
    }
    let named = named.unwrap_or_default();
    assert!(named.is_sorted_by_key(|symbol| symbol.value));
    assert!(named.iter().all(|symbol| is_name(symbol, data)));
});

/// A name is cut from the file: bytes that are no text become 3 each, and a stub has `@plt` behind it.
fn is_name(symbol: &Symbol, data: &[u8]) -> bool {
    !symbol.name.is_empty() && symbol.name.len() <= 3 * data.len() + 4
}
