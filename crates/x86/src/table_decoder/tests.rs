//! Compares with the full decoder: all results must be equal, and nearly all code must be known.

use super::{decode_by_table, decode_near_branch, plain_length};
use crate::class::InstructionClass;
use crate::iced_decoder;
use crate::instruction::{CodeMode, Instruction};

const PREFIXES: &[&[u8]] = &[
    &[],
    &[0x66],
    &[0xf3],
    &[0xf2],
    &[0xf0],
    &[0x67],
    &[0x64],
    &[0x2e],
    &[0x66, 0x67],
    &[0xf3, 0x67],
    &[0x66, 0x66, 0x2e],
    &[0xf2, 0xf3],
    &[0x66, 0xf3],
    &[0xf2, 0x66],
    &[0xf0, 0xf2],
    &[0x3e, 0xf2, 0x36],
    &[0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x2e],
];

/// Yields ModRM with some bytes after it: a SIB with a base, one without, one with R13.
fn sample_operands() -> impl Iterator<Item = [u8; 12]> {
    (0..=255).flat_map(|modrm: u8| {
        let sibs: &[u8] = match modrm & 7 {
            4 if modrm < 0xc0 => &[0x00, 0x05, 0x65, 0x25, 0xe4],
            _ => &[0x81],
        };
        sibs.iter()
            .map(move |&sib| [modrm, sib, 0x90, 0xf1, 0xff, 0x7f, 0x80, 1, 2, 3, 4, 5])
    })
}

/// Compares all decoders; returns whether the table decoder knew the instruction, and checks that it knows what the
/// faster ones know.
fn matches_iced(bytes: &[u8], ip: u64, mode: CodeMode) -> bool {
    let first = bytes.first_chunk().filter(|_| mode == CodeMode::Bits64);
    let plain = first.map_or(0, plain_length::plain_length);
    let near = decode_near_branch(bytes, ip, mode);
    let Some(quick) = decode_by_table(bytes, ip, mode) else {
        assert_eq!((plain, near), (0, None), "{bytes:02x?} {mode:?}");
        return false;
    };
    let full = iced_decoder::decode(bytes, ip, mode);
    assert_eq!(Ok(quick), full, "{bytes:02x?} {mode:?}");
    if let Some(near) = near {
        assert_eq!(near, quick, "{bytes:02x?}");
    }
    if plain != 0 {
        let plain =
            Instruction::without_target(ip, plain as u8, InstructionClass::Other, CodeMode::Bits64);
        assert_eq!((plain, near), (quick, None), "{bytes:02x?}");
    }
    true
}

/// Joins the parts in `bytes`, to 24 bytes in all.
fn join_and_pad<'a>(bytes: &'a mut Vec<u8>, parts: &[&[u8]]) -> &'a [u8] {
    bytes.clear();
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes.resize(24, 0x5a);
    bytes
}

#[test]
fn opcodes_with_modrm_and_rex_match_iced() {
    let mut bytes = Vec::new();
    let mut known = 0u64;
    for mode in [CodeMode::Bits64, CodeMode::Bits32, CodeMode::Bits16] {
        let rexes: Vec<Vec<u8>> = match mode {
            CodeMode::Bits64 => std::iter::once(vec![])
                .chain([0x40, 0x41, 0x42, 0x44, 0x48, 0x4f].map(|rex| vec![rex]))
                .chain([vec![0x48, 0x66], vec![0x48, 0x41]])
                .collect(),
            _ => vec![vec![]],
        };
        for prefixes in PREFIXES {
            for rex in &rexes {
                for escape in [&[][..], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]] {
                    for opcode in 0..=255 {
                        for operand in sample_operands() {
                            let bytes = join_and_pad(
                                &mut bytes,
                                &[prefixes, rex, escape, &[opcode], &operand],
                            );
                            known += u64::from(matches_iced(bytes, 0xffff_fff0, mode));
                        }
                    }
                }
            }
        }
    }
    assert!(known > 5_000_000, "{known}");
}

#[test]
fn opcodes_with_vex_prefix_match_iced() {
    let mut bytes = Vec::new();
    let mut known = 0u64;
    let mut each = |prefix: &[u8]| {
        for opcode in 0..=255 {
            for operand in
                sample_operands().filter(|operand| operand[0] & 3 == 0 || operand[0] & 7 == 5)
            {
                let bytes = join_and_pad(&mut bytes, &[prefix, &[opcode], &operand]);
                known += u64::from(matches_iced(bytes, 0x7fff_ffff_f000, CodeMode::Bits64));
                matches_iced(bytes, 0x1000, CodeMode::Bits32);
            }
        }
    };
    for last in 0..=255u8 {
        each(&[0xc5, last]);
        // All existing maps, and all values of R, X, B in the first one.
        for map in [0u8, 1, 2, 3, 5, 7, 31] {
            each(&[0xc4, 0xe0 | map, last]);
        }
        for registers in 0..8u8 {
            each(&[0xc4, registers << 5 | 1, last]);
        }
    }
    for before in [0x66, 0xf2, 0xf3, 0x48, 0x2e] {
        each(&[before, 0xc5, 0xf8]);
        each(&[before, 0xc4, 0xe1, 0x78]);
    }
    assert!(known > 1_000_000, "{known}");
}

#[test]
fn branch_targets_wrap_as_in_iced() {
    for mode in [CodeMode::Bits64, CodeMode::Bits32] {
        for ip in [
            0,
            2,
            0x7fff_fff0,
            0xffff_fffa,
            0x8000_0000_0000_0000,
            u64::MAX - 3,
        ] {
            for code in [&[0x74u8, 0x80][..], &[0xeb, 0x7f], &[0xe2, 0xfe]] {
                assert!(matches_iced(
                    join_and_pad(&mut Vec::new(), &[code]),
                    ip,
                    mode
                ));
            }
            for offset in [0i32, -5, i32::MAX, i32::MIN, 0x1234_5678] {
                let offset = offset.to_le_bytes();
                for code in [&[0xe8u8][..], &[0xe9], &[0x0f, 0x8f]] {
                    assert!(matches_iced(
                        join_and_pad(&mut Vec::new(), &[code, &offset]),
                        ip,
                        mode
                    ));
                }
            }
        }
    }
}

/// Instructions of at most 15 bytes, and longer ones.
#[test]
fn long_instructions_match_iced() {
    let mut bytes = Vec::new();
    for count in 0..15 {
        for prefix in [0x66u8, 0x2e, 0x64, 0xf3] {
            let prefixes = vec![prefix; count];
            for code in [
                &[0x81u8, 0x84, 0x24, 1, 2, 3, 4, 5, 6, 7, 8][..],
                &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8],
                &[0x66, 0x0f, 0x3a, 0x0f, 0x84, 0x25, 1, 2, 3, 4, 5],
                &[0x48, 0xa1, 1, 2, 3, 4, 5, 6, 7, 8],
                &[0x90],
                &[0xe8, 1, 2, 3, 4],
            ] {
                matches_iced(
                    join_and_pad(&mut bytes, &[&prefixes, code]),
                    0x1000,
                    CodeMode::Bits64,
                );
                matches_iced(
                    join_and_pad(&mut bytes, &[&prefixes, code]),
                    0x1000,
                    CodeMode::Bits32,
                );
            }
        }
    }
    // Too few bytes to be sure.
    assert_eq!(decode_by_table(&[0x90; 15], 0, CodeMode::Bits64), None);
}

#[test]
fn random_bytes_match_iced() {
    let mut state = 0x9876_5432_1abc_def1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    for _ in 0..4_000_000 {
        let mut bytes = [0; 24];
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&next().to_le_bytes());
        }
        let ip = next();
        for mode in [CodeMode::Bits64, CodeMode::Bits32, CodeMode::Bits16] {
            matches_iced(&bytes, ip, mode);
        }
    }
}

/// Decodes the bytes of this program and of installed libraries.
#[test]
fn code_of_installed_programs_matches_iced() {
    let own = std::env::current_exe().expect("this program has a file");
    let installed = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/libc.so.6",
        "/bin/ls",
        "/bin/bash",
    ];
    let installed = installed.into_iter().map(std::path::PathBuf::from);
    for file in std::iter::once(own).chain(installed) {
        let Ok(bytes) = std::fs::read(&file) else {
            continue;
        };
        let (mut at, mut all, mut found) = (0, 0u64, 0u64);
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() > 16) {
            let length = match iced_decoder::decode(rest, at as u64, CodeMode::Bits64) {
                Ok(instruction) => {
                    all += 1;
                    found += u64::from(matches_iced(rest, at as u64, CodeMode::Bits64));
                    usize::from(instruction.length)
                }
                Err(_) => 1,
            };
            at += length;
        }
        // Much of a file is no code, and less of that is known.
        assert!(found * 10 > all * 8, "{}: {found} of {all}", file.display());
    }
}
