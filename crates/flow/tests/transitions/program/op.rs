//! The operations of a random program.

use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Nop,
    LongNop,
    Conditional(u8),
    Jump(u8),
    Call(u8),
    Return,
    IndirectJump,
    IndirectCall,
    Syscall,
    PtWrite,
    MovCr3,
    VmLaunch,
}

impl Op {
    pub fn length(self) -> u64 {
        match self {
            Op::Nop | Op::Return => 1,
            Op::IndirectJump | Op::IndirectCall | Op::Syscall => 2,
            Op::LongNop | Op::MovCr3 | Op::VmLaunch => 3,
            Op::PtWrite => 4,
            Op::Jump(_) | Op::Call(_) => 5,
            Op::Conditional(_) => 6,
        }
    }

    pub fn bytes(self, ip: u64, target: u64) -> Vec<u8> {
        let relative = |head: &[u8]| {
            let next = ip + self.length();
            let displacement = target.wrapping_sub(next) as u32;
            [head, &displacement.to_le_bytes()].concat()
        };
        match self {
            Op::Nop => vec![0x90],
            Op::LongNop => vec![0x0f, 0x1f, 0x00],
            Op::Conditional(_) => relative(&[0x0f, 0x85]),
            Op::Jump(_) => relative(&[0xe9]),
            Op::Call(_) => relative(&[0xe8]),
            Op::Return => vec![0xc3],
            Op::IndirectJump => vec![0xff, 0xe0],
            Op::IndirectCall => vec![0xff, 0xd0],
            Op::Syscall => vec![0x0f, 0x05],
            Op::PtWrite => vec![0xf3, 0x0f, 0xae, 0xe0],
            Op::MovCr3 => vec![0x0f, 0x22, 0xd8],
            Op::VmLaunch => vec![0x0f, 0x01, 0xc2],
        }
    }
}

pub fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => Just(Op::Nop),
        2 => Just(Op::LongNop),
        8 => any::<u8>().prop_map(Op::Conditional),
        3 => any::<u8>().prop_map(Op::Jump),
        5 => any::<u8>().prop_map(Op::Call),
        4 => Just(Op::Return),
        1 => Just(Op::IndirectJump),
        2 => Just(Op::IndirectCall),
        1 => Just(Op::Syscall),
        1 => Just(Op::PtWrite),
        1 => Just(Op::MovCr3),
        1 => Just(Op::VmLaunch),
    ]
}
