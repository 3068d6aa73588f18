//! Bytes typed from the instruction set reference, one row a kind.

use super::*;

fn decode_at_0x1000(bytes: &[u8], mode: CodeMode) -> Instruction {
    decode(bytes, 0x1000, mode).expect("a legal instruction")
}

#[test]
fn instructions_of_64_bit_code_have_their_classes() {
    let rows: &[(&[u8], InstructionClass, u8, u64)] = &[
        (&[0x90], InstructionClass::Other, 1, 0),
        (&[0x74, 0x10], InstructionClass::Conditional, 2, 0x1012),
        (
            &[0x0f, 0x85, 0, 1, 0, 0],
            InstructionClass::Conditional,
            6,
            0x1106,
        ),
        (&[0xe2, 0xfe], InstructionClass::Conditional, 2, 0x1000),
        (&[0xe0, 0x00], InstructionClass::Conditional, 2, 0x1002),
        (&[0xe3, 0x02], InstructionClass::Conditional, 2, 0x1004),
        (&[0xeb, 0xfe], InstructionClass::Jump, 2, 0x1000),
        (&[0xe9, 0, 0, 0, 0], InstructionClass::Jump, 5, 0x1005),
        (&[0xe8, 0, 0, 0, 0], InstructionClass::Call, 5, 0x1005),
        (&[0xe8, 1, 0, 0, 0], InstructionClass::Call, 5, 0x1006),
        (&[0xff, 0xe0], InstructionClass::IndirectJump, 2, 0),
        (&[0x3e, 0xff, 0xe0], InstructionClass::IndirectJump, 3, 0),
        (&[0xff, 0xd0], InstructionClass::IndirectCall, 2, 0),
        (
            &[0xff, 0x15, 0, 0, 0, 0],
            InstructionClass::IndirectCall,
            6,
            0,
        ),
        (&[0xc3], InstructionClass::Return, 1, 0),
        (&[0xf3, 0xc3], InstructionClass::Return, 2, 0),
        (&[0xc2, 8, 0], InstructionClass::Return, 3, 0),
        (&[0xcb], InstructionClass::FarTransfer, 1, 0),
        (&[0xff, 0x28], InstructionClass::FarTransfer, 2, 0),
        (&[0xff, 0x18], InstructionClass::FarTransfer, 2, 0),
        (&[0x48, 0xcf], InstructionClass::FarTransfer, 2, 0),
        (&[0x48, 0x0f, 0x07], InstructionClass::FarTransfer, 3, 0),
        (&[0x0f, 0x35], InstructionClass::FarTransfer, 2, 0),
        (
            &[0xf3, 0x0f, 0x01, 0xec],
            InstructionClass::FarTransfer,
            4,
            0,
        ),
        (
            &[0xf2, 0x0f, 0x01, 0xca],
            InstructionClass::FarTransfer,
            4,
            0,
        ),
        (
            &[0xf3, 0x0f, 0x01, 0xca],
            InstructionClass::FarTransfer,
            4,
            0,
        ),
        (&[0x0f, 0x05], InstructionClass::Syscall, 2, 0),
        (&[0x0f, 0x34], InstructionClass::Syscall, 2, 0),
        (&[0xcc], InstructionClass::SoftwareInterrupt, 1, 0),
        (&[0xcd, 0x80], InstructionClass::SoftwareInterrupt, 2, 0),
        (&[0xf1], InstructionClass::SoftwareInterrupt, 1, 0),
        (&[0x0f, 0x01, 0xc2], InstructionClass::VmEntry, 3, 0),
        (&[0x0f, 0x01, 0xc3], InstructionClass::VmEntry, 3, 0),
        (&[0x0f, 0x01, 0xc1], InstructionClass::Other, 3, 0),
        (&[0x0f, 0x22, 0xd8], InstructionClass::MovCr3, 3, 0),
        (&[0x0f, 0x22, 0xc0], InstructionClass::Other, 3, 0),
        (
            &[0xf3, 0x48, 0x0f, 0xae, 0xe0],
            InstructionClass::PtWrite,
            5,
            0,
        ),
        (&[0x0f, 0xc7, 0x30], InstructionClass::VmPtrLd, 3, 0),
        (
            &[0xc7, 0xf8, 2, 0, 0, 0],
            InstructionClass::XBegin,
            6,
            0x1008,
        ),
        (&[0x0f, 0x01, 0xd5], InstructionClass::XEnd, 3, 0),
        (&[0xc6, 0xf8, 1], InstructionClass::XAbort, 3, 0),
    ];
    for (bytes, class, length, target) in rows {
        let got = decode_at_0x1000(bytes, CodeMode::Bits64);
        assert_eq!(
            (got.class, got.length, got.target),
            (*class, *length, *target),
            "{bytes:02x?}"
        );
    }
}

#[test]
fn instructions_of_32_bit_code_have_their_classes() {
    let far_jump = [0xea, 0, 0, 0, 0, 0x08, 0];
    assert_eq!(
        decode_at_0x1000(&far_jump, CodeMode::Bits32).class,
        InstructionClass::FarTransfer
    );
    let far_call = [0x9a, 0, 0, 0, 0, 0x08, 0];
    assert_eq!(
        decode_at_0x1000(&far_call, CodeMode::Bits32).class,
        InstructionClass::FarTransfer
    );
    assert_eq!(
        decode_at_0x1000(&[0xce], CodeMode::Bits32).class,
        InstructionClass::SoftwareInterrupt
    );
    assert_eq!(
        decode(&[0xce], 0, CodeMode::Bits64),
        Err(UndecodableReason::Invalid)
    );
    assert_eq!(
        decode_at_0x1000(&[0xe8, 0xfb, 0xef, 0xff, 0xff], CodeMode::Bits32).target,
        0
    );
}

#[test]
fn instructions_have_the_flags_that_a_tracer_needs() {
    assert!(decode_at_0x1000(&[0xf3, 0xa4], CodeMode::Bits64).repeats);
    assert!(decode_at_0x1000(&[0xf2, 0xae], CodeMode::Bits64).repeats);
    assert!(!decode_at_0x1000(&[0xa4], CodeMode::Bits64).repeats);
    assert!(
        !decode_at_0x1000(&[0xf3, 0x90], CodeMode::Bits64).repeats,
        "PAUSE"
    );
    assert!(decode_at_0x1000(&[0x8e, 0xd0], CodeMode::Bits64).shadows);
    assert!(decode_at_0x1000(&[0x17], CodeMode::Bits32).shadows);
    assert!(
        !decode_at_0x1000(&[0x8e, 0xd8], CodeMode::Bits64).shadows,
        "MOV DS"
    );
    assert!(decode_at_0x1000(&[0x9c], CodeMode::Bits64).pushes_flags);
    for code in [&[0x9d][..], &[0x66, 0x9d], &[0xcf], &[0x48, 0xcf]] {
        assert!(decode_at_0x1000(code, CodeMode::Bits64).pops_flags);
    }
    assert!(!decode_at_0x1000(&[0x9c], CodeMode::Bits64).pops_flags);
    // the operand size of a near RET is 64 bits in 64-bit code, whatever its prefixes
    assert!(decode_at_0x1000(&[0x66, 0xc3], CodeMode::Bits32).narrow);
    assert!(decode_at_0x1000(&[0x66, 0xc2, 8, 0], CodeMode::Bits32).narrow);
    assert!(!decode_at_0x1000(&[0xc3], CodeMode::Bits32).narrow);
    assert!(!decode_at_0x1000(&[0x66, 0xc3], CodeMode::Bits64).narrow);
    assert!(decode_at_0x1000(&[0xe8, 0, 0, 0, 0], CodeMode::Bits64).is_call_to_next_instruction());
    assert!(!decode_at_0x1000(&[0xe8, 4, 0, 0, 0], CodeMode::Bits64).is_call_to_next_instruction());
}

#[test]
fn apx_encodings_have_their_classes_and_lengths() {
    // ADD R16, RAX: REX2 with B4 set, map 0
    let got = decode_at_0x1000(&[0xd5, 0x18, 0x01, 0xc0], CodeMode::Bits64);
    assert_eq!((got.class, got.length), (InstructionClass::Other, 4));
    // map 1: IMUL RAX, R16 is D5 98 AF C0
    let got = decode_at_0x1000(&[0xd5, 0x98, 0xaf, 0xc0], CodeMode::Bits64);
    assert_eq!((got.class, got.length), (InstructionClass::Other, 4));
    // CALL R16
    let got = decode_at_0x1000(&[0xd5, 0x10, 0xff, 0xd0], CodeMode::Bits64);
    assert_eq!((got.class, got.length), (InstructionClass::IndirectCall, 4));
    let jmpabs = [0xd5, 0x00, 0xa1, 1, 2, 3, 4, 5, 6, 7, 8];
    let got = decode_at_0x1000(&jmpabs, CodeMode::Bits64);
    assert_eq!(
        (got.class, got.length),
        (InstructionClass::IndirectJump, 11)
    );
    for cut in 1..jmpabs.len() {
        assert_eq!(
            decode(&jmpabs[..cut], 0, CodeMode::Bits64),
            Err(UndecodableReason::Truncated)
        );
    }
    assert_eq!(
        decode_at_0x1000(&[0xd5, 0x0a], CodeMode::Bits32).length,
        2,
        "AAD outside 64-bit code"
    );
}

#[test]
fn truncated_and_invalid_bytes_are_errors() {
    assert_eq!(
        decode(&[], 0, CodeMode::Bits64),
        Err(UndecodableReason::Truncated)
    );
    assert_eq!(
        decode(&[0x48], 0, CodeMode::Bits64),
        Err(UndecodableReason::Truncated)
    );
    assert_eq!(
        decode(&[0xe8, 0, 0], 0, CodeMode::Bits64),
        Err(UndecodableReason::Truncated)
    );
    assert_eq!(
        decode(&[0x06], 0, CodeMode::Bits64),
        Err(UndecodableReason::Invalid)
    );
    assert_eq!(
        decode(&[0x66; 20], 0, CodeMode::Bits64),
        Err(UndecodableReason::Invalid)
    );
}

#[test]
fn instruction_of_more_than_15_bytes_is_invalid() {
    let mut late = [0x66; 18];
    late[14..].copy_from_slice(&[0xd5, 0x00, 0x90, 0x90]);
    assert_eq!(
        decode(&late, 0, CodeMode::Bits64),
        Err(UndecodableReason::Invalid)
    );
    let mut long = [0x3e; 20];
    long[0] = 0xd5;
    long[14..].copy_from_slice(&[0x00, 0x3f, 0x00, 0x00, 0x0f, 0x3e]);
    assert_eq!(
        decode(&long, 0, CodeMode::Bits64),
        Err(UndecodableReason::Invalid)
    );
}

#[test]
fn text_is_in_intel_syntax() {
    assert_eq!(
        format_instruction(&[0x48, 0x8b, 0x43, 0x08], 0, CodeMode::Bits64),
        "mov rax,[rbx+8]"
    );
    assert_eq!(
        format_instruction(&[0xe8, 0, 0, 0, 0], 0x1000, CodeMode::Bits64),
        "call 0x1005"
    );
    assert_eq!(format_instruction(&[0x06], 0, CodeMode::Bits64), "(bad)");
    assert_eq!(format_instruction(&[], 0, CodeMode::Bits64), "(bad)");
}

#[test]
fn any_bytes_are_decoded_without_a_panic() {
    let mut state = 0x1234_5678_9abc_def1u64;
    for _ in 0..200_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&state.to_le_bytes());
        bytes[8..].copy_from_slice(&state.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        if state & 3 == 0 {
            bytes[0] = 0xd5;
        }
        let cut = (state >> 20) as usize % 17;
        for mode in [CodeMode::Bits16, CodeMode::Bits32, CodeMode::Bits64] {
            if let Ok(got) = decode(&bytes[..cut], state, mode) {
                assert!(usize::from(got.length) <= cut && got.length >= 1);
            }
        }
    }
}
