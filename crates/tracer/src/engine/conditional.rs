//! Conditional branches to the instruction that follows: where the thread is does not tell whether they were taken.

use libc::pid_t;
use rtit_x86::{Instruction, MAX_LENGTH};

use crate::sys::Registers;
use crate::{memory, sys};

/// Whether the branch that the thread has just executed was taken. They change no flags, and LOOP alone changes RCX.
pub(super) fn is_taken(tid: pid_t, instruction: &Instruction) -> bool {
    let mut bytes = [0u8; MAX_LENGTH];
    let length = usize::from(instruction.length);
    let count = memory::read(tid, instruction.ip, &mut bytes[..length]);
    match sys::registers(tid) {
        Ok(registers) => condition(&bytes[..count], &registers),
        Err(_) => false,
    }
}

/// The condition of Jcc, JRCXZ, JECXZ or LOOPcc in 64-bit code, with the registers after it.
fn condition(bytes: &[u8], registers: &Registers) -> bool {
    let mut bytes = bytes.iter().copied();
    let mut short_count = false;
    let mut opcode = bytes.next();
    // Legacy and REX prefixes.
    while let Some(0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3) =
        opcode
    {
        short_count |= opcode == Some(0x67);
        opcode = bytes.next();
    }
    let count = if short_count {
        registers.rcx & 0xffff_ffff
    } else {
        registers.rcx
    };
    let zero = registers.eflags & ZF != 0;
    match opcode {
        Some(code @ 0x70..=0x7f) => holds(code, registers.eflags),
        Some(0x0f) => bytes
            .next()
            .is_some_and(|code| holds(code, registers.eflags)),
        Some(0xe0) => count != 0 && !zero,
        Some(0xe1) => count != 0 && zero,
        Some(0xe2) => count != 0,
        Some(0xe3) => count == 0,
        _ => false,
    }
}

const CF: u64 = 1 << 0;
const PF: u64 = 1 << 2;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;

/// The low four bits of the opcode say which condition; bit 0 negates it.
fn holds(code: u8, flags: u64) -> bool {
    let set = |mask: u64| flags & mask != 0;
    let less = set(SF) != set(OF);
    let holds = match code >> 1 & 7 {
        0 => set(OF),
        1 => set(CF),
        2 => set(ZF),
        3 => set(CF | ZF),
        4 => set(SF),
        5 => set(PF),
        6 => less,
        _ => less || set(ZF),
    };
    holds != (code & 1 == 1)
}
