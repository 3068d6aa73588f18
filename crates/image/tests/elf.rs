//! Tables of ELF files that lie at odd offsets.

use std::io::Cursor;

use rtit_image::elf::{read_elf_headers, ReadCache};

const BUILD_ID: [u8; 4] = [1, 2, 3, 4];

/// A header of 64 bytes, `gap` bytes, a program header (PT_NOTE) and a note with a build id.
fn elf_file_with_note(gap: u64) -> Vec<u8> {
    let (table, note) = (64 + gap, 64 + gap + 56);
    let mut file = [&[0x7F, b'E', b'L', b'F', 2, 1, 1][..], &[0; 9]].concat();
    for half in [3_u16, 62] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1_u32.to_le_bytes());
    for word in [0, table, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    file.resize(table as usize, 0);
    for word in [4_u32, 4] {
        file.extend(word.to_le_bytes());
    }
    for word in [note, 0, 0, 20, 20, 4] {
        file.extend(word.to_le_bytes());
    }
    for word in [4_u32, 4, 3] {
        file.extend(word.to_le_bytes());
    }
    file.extend(b"GNU\0");
    file.extend(BUILD_ID);
    file
}

#[test]
fn elf_tables_at_odd_offsets_are_read_as_at_even_ones() {
    for gap in 0..8 {
        let file = elf_file_with_note(gap);
        let elf = read_elf_headers(&file[..]).unwrap();
        assert_eq!(elf.build_id.as_deref(), Some(&BUILD_ID[..]), "{gap}");
        assert_eq!(
            elf,
            read_elf_headers(&ReadCache::new(Cursor::new(&file))).unwrap()
        );
    }
}
