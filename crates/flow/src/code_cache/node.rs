//! The types of the code cache: nodes, the code ranges and calls in them, and why a node ends.

use crate::sink::RunEnd;
use rtit_x86::Mode;

/// No node, or one that is not known yet.
pub(crate) const NO_NODE: u32 = u32::MAX;

/// Why a node ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeEnd {
    Conditional,
    IndirectJump,
    IndirectCall,
    Return,
    /// A near RET that cuts its target to 16 bits.
    NarrowReturn,
    Far,
    Syscall,
    /// INT n and the like: an event with FUP follows, never a plain TIP.
    SoftwareInterrupt,
    /// VMLAUNCH, VMRESUME: a TIP or TIP.PGD if it succeeds, else the next instruction.
    VmEntry,
    /// MOV CR3: TIP.PGD may bind to it, else the next instruction.
    MovCr3,
    /// PTWRITE: a PTW may bind to it, else the next instruction.
    PtWrite,
    /// The node is long enough; the next begins where it ends.
    Full,
    /// A jump back into the node: an endless loop.
    Loop,
    /// What follows was not mapped when the node was built, or is no instruction.
    Unknown,
    /// The code changed: the node must be looked up again by its start.
    Dead,
}

impl NodeEnd {
    /// Whether execution can continue to the next node without a packet.
    pub fn continues_without_packet(self) -> bool {
        matches!(
            self,
            NodeEnd::VmEntry
                | NodeEnd::MovCr3
                | NodeEnd::PtWrite
                | NodeEnd::Full
                | NodeEnd::Loop
                | NodeEnd::Unknown
        )
    }

    pub fn run_end(self) -> RunEnd {
        match self {
            NodeEnd::Conditional => RunEnd::Conditional,
            NodeEnd::IndirectJump => RunEnd::IndirectJump,
            NodeEnd::IndirectCall => RunEnd::IndirectCall,
            NodeEnd::Return | NodeEnd::NarrowReturn => RunEnd::Return,
            NodeEnd::Far => RunEnd::Far,
            NodeEnd::Syscall => RunEnd::Syscall,
            NodeEnd::VmEntry => RunEnd::VmEntry,
            NodeEnd::MovCr3 => RunEnd::Off,
            _ => RunEnd::Cut,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct CodeNode {
    pub start: u64,
    /// Target of the conditional branch at the end.
    pub target: u64,
    /// Address after the last instruction; for `Full` and `Loop` where the flow goes on.
    pub next: u64,
    pub taken: u32,
    pub fall: u32,
    pub instructions: u32,
    pub(super) first_code_range: u32,
    pub(super) first_call: u32,
    pub(super) code_ranges: u16,
    pub(super) calls: u16,
    pub end: NodeEnd,
    /// What the last instruction does, also when the node is dead.
    pub run_end: RunEnd,
    pub mode: Mode,
}

/// A contiguous range of memory within a node.
#[derive(Clone, Debug)]
pub(crate) struct CodeRange {
    pub start: u64,
    pub last: u64,
    pub(super) hash: u64,
    pub(super) factor: u64,
    pub(super) first_length: u32,
    pub count: u32,
    /// `Jump`, `NearCall`, or `Cut` for the last piece of a node.
    pub run_end: RunEnd,
}

/// A near call that pushes: a direct one within a node, or an indirect one that ends it.
#[derive(Clone, Debug)]
pub(crate) struct NearCall {
    pub return_ip: u64,
    /// The node at `return_ip`, filled on first use.
    pub node: u32,
    /// Index of the piece, counted within the node, that ends in this call.
    pub code_range: u16,
}

/// A position within a node: a number of whole code ranges, then a number of instructions in the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodePosition {
    pub code_ranges: usize,
    pub instructions: usize,
}
