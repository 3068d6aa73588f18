//! Any text as the name of a symbol.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtit_image::demangle;

fuzz_target!(|data: &[u8]| {
    let name = String::from_utf8_lossy(data);
    let readable = demangle(&name);
    assert!(readable == name || readable.len() <= 4096);
});
