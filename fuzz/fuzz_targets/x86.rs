//! Any bytes as an instruction, in each mode. The first 8 bytes of the input are the IP.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtit_x86::{
    decode, format_instruction, CodeMode, InstructionClass, UndecodableReason, MAX_LENGTH,
};

fuzz_target!(|data: &[u8]| {
    let Some((ip, code)) = data.split_first_chunk::<8>() else {
        return;
    };
    for mode in [CodeMode::Bits16, CodeMode::Bits32, CodeMode::Bits64] {
        check(u64::from_le_bytes(*ip), code, mode);
    }
});

fn check(ip: u64, code: &[u8], mode: CodeMode) {
    assert!(!format_instruction(code, ip, mode).is_empty());
    match decode(code, ip, mode) {
        Ok(found) => {
            let length = usize::from(found.length);
            assert!((1..=MAX_LENGTH.min(code.len())).contains(&length));
            assert_eq!(found.ip, ip);
            assert_eq!(
                found.next_address(),
                mode.truncate_ip(ip.wrapping_add(length as u64))
            );
            assert_eq!(found.target, mode.truncate_ip(found.target));
            let aims = matches!(
                found.class,
                InstructionClass::Conditional | InstructionClass::XBegin
            );
            assert!(found.target == 0 || aims || found.class.is_direct_transfer());
            // Its own bytes are enough, and fewer are not.
            assert_eq!(decode(&code[..length], ip, mode), Ok(found));
            for cut in 0..length {
                let end = decode(&code[..cut], ip, mode);
                assert!(end.is_err(), "{cut} bytes of {found:?}");
            }
        }
        Err(UndecodableReason::Truncated) => assert!(code.len() < MAX_LENGTH),
        // More bytes than an instruction can have do not help.
        Err(UndecodableReason::Invalid) => {
            let longest = &code[..code.len().min(MAX_LENGTH)];
            assert_eq!(decode(longest, ip, mode), Err(UndecodableReason::Invalid));
        }
    }
}
