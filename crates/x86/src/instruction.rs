//! A decoded instruction.

use crate::class::InstructionClass;

/// The longest legal instruction, in bytes.
pub const MAX_LENGTH: usize = 15;

/// The operating mode of code (reported by MODE.Exec).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum CodeMode {
    Bits16,
    Bits32,
    Bits64,
}

impl CodeMode {
    /// Returns the width of an instruction pointer, in bits.
    pub const fn pointer_bits(self) -> u32 {
        match self {
            CodeMode::Bits16 => 16,
            CodeMode::Bits32 => 32,
            CodeMode::Bits64 => 64,
        }
    }

    /// Truncates `ip` to the width of this mode. 16-bit code keeps 32 bits, since a linear IP includes the CS base.
    pub const fn truncate_ip(self, ip: u64) -> u64 {
        match self {
            CodeMode::Bits64 => ip,
            CodeMode::Bits16 | CodeMode::Bits32 => ip & 0xffff_ffff,
        }
    }
}

/// One decoded instruction, reduced to what PT and a tracer need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    pub ip: u64,
    /// 1 to 15 bytes.
    pub length: u8,
    pub class: InstructionClass,
    /// The target of a direct branch or call (for XBEGIN: the abort handler), otherwise 0.
    pub target: u64,
    /// A string instruction with a REP, REPE or REPNE prefix.
    pub repeats: bool,
    /// MOV SS and POP SS: a single step traps only after the next instruction.
    pub shadows: bool,
    /// PUSHF: stores RFLAGS, the trap flag included.
    pub pushes_flags: bool,
    /// POPF and IRET: load RFLAGS, the trap flag included.
    pub pops_flags: bool,
    /// A near RET of 32-bit code with a 16-bit operand: the target is cut to 16 bits.
    pub narrow: bool,
    pub(crate) mode: CodeMode,
}

impl Instruction {
    /// Returns an instruction without target and flags.
    #[inline(always)]
    pub(crate) const fn without_target(
        ip: u64,
        length: u8,
        class: InstructionClass,
        mode: CodeMode,
    ) -> Instruction {
        Instruction {
            ip,
            length,
            class,
            target: 0,
            repeats: false,
            shadows: false,
            pushes_flags: false,
            pops_flags: false,
            narrow: false,
            mode,
        }
    }

    /// Returns the address of the next instruction in memory.
    pub const fn next_address(&self) -> u64 {
        self.mode
            .truncate_ip(self.ip.wrapping_add(self.length as u64))
    }

    /// Returns whether this is a direct call with displacement 0, which only reads the IP and pushes nothing on the
    /// stack of RET compression.
    pub const fn is_call_to_next_instruction(&self) -> bool {
        matches!(self.class, InstructionClass::Call) && self.target == self.next_address()
    }
}

/// Why bytes are not an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UndecodableReason {
    /// The bytes end inside the instruction.
    Truncated,
    /// The bytes are no legal instruction of this mode.
    Invalid,
}

impl std::fmt::Display for UndecodableReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            UndecodableReason::Truncated => "the code bytes end inside an instruction",
            UndecodableReason::Invalid => "the bytes are no instruction",
        })
    }
}

impl std::error::Error for UndecodableReason {}
