//! Nodes and what they are made of.

use rtit_x86::Mode;

use crate::sink::End;

/// Index of a node that is not known yet.
pub(crate) const NO_NODE: u32 = u32::MAX;

/// Why a node ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    Conditional,
    IndirectJump,
    IndirectCall,
    Return,
    /// A near RET that cuts its target to 16 bits.
    NarrowReturn,
    Far,
    Syscall,
    /// INT n and its kin: an event with FUP follows, never a plain TIP.
    SoftwareInterrupt,
    /// VMLAUNCH, VMRESUME: a TIP or TIP.PGD if it succeeds, else the next instruction.
    VmEntry,
    /// MOV CR3: TIP.PGD may bind to it, else the next instruction.
    MovCr3,
    /// PTWRITE: a PTW may bind to it, else the next instruction.
    PtWrite,
    /// The node is long enough; the next begins where it ends.
    Full,
    /// A jump back into the node: it goes round for ever.
    Loop,
    /// What follows was not mapped when the node was built, or is no instruction.
    Unknown,
    /// The code changed: the node must be looked up again by its start.
    Dead,
}

impl Stop {
    /// Whether the flow can go on to the next node without a packet.
    pub fn passes(self) -> bool {
        matches!(
            self,
            Stop::VmEntry | Stop::MovCr3 | Stop::PtWrite | Stop::Full | Stop::Loop | Stop::Unknown
        )
    }

    pub fn end(self) -> End {
        match self {
            Stop::Conditional => End::Conditional,
            Stop::IndirectJump => End::IndirectJump,
            Stop::IndirectCall => End::IndirectCall,
            Stop::Return | Stop::NarrowReturn => End::Return,
            Stop::Far => End::Far,
            Stop::Syscall => End::Syscall,
            Stop::VmEntry => End::VmEntry,
            Stop::MovCr3 => End::Off,
            _ => End::Cut,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub start: u64,
    /// Target of the conditional branch at the end.
    pub target: u64,
    /// Address after the last instruction; for `Full` and `Loop` where the flow goes on.
    pub next: u64,
    pub taken: u32,
    pub fall: u32,
    pub instructions: u32,
    pub(super) first_piece: u32,
    pub(super) first_call: u32,
    pub(super) pieces: u16,
    pub(super) calls: u16,
    pub stop: Stop,
    /// What the last instruction does, also when the node is dead.
    pub end: End,
    pub mode: Mode,
}

/// One stretch of memory that a node runs through.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub start: u64,
    pub last: u64,
    pub(super) hash: u64,
    pub(super) factor: u64,
    pub(super) first_length: u32,
    pub count: u32,
    /// `Jump`, `Call`, or `Cut` for the last piece of a node.
    pub end: End,
}

/// A near call that pushes: a direct one within a node, or an indirect one that ends it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub return_ip: u64,
    /// The node at `return_ip`, filled on first use.
    pub node: u32,
    /// Index of the piece, counted within the node, that ends in this call.
    pub piece: u16,
}

/// A place within a node: this many whole pieces, then this many instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub pieces: usize,
    pub instructions: usize,
}
