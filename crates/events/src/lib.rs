//! Capture events: the kinds and flags of the records in which tracers report what a program did.
//!
//! Generated: `python -m rtit.capture.rust_events`.

#![forbid(unsafe_code)]

/// Bytes of a record, little-endian: kind u8, flags u8, instruction length u16, tid u32; ip,
/// target, clock, extra u64.
pub const RECORD_SIZE: usize = 40;

/// What happened; the other fields depend on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum EventKind {
    /// At ip, with its target if taken. The fall-through is ip + length.
    Conditional = 1,
    Jump = 2,
    /// Direct; a target of ip + length is the call that only reads the IP.
    Call = 3,
    IndirectJump = 4,
    IndirectCall = 5,
    Return = 6,
    /// A far transfer that stays in user mode.
    Far = 7,
    /// At ip: user code is left.
    Syscall = 8,
    /// ip is the next instruction, not yet executed; extra: the signal number.
    Interrupt = 9,
    /// The instruction at ip did not retire; extra: the signal number, from bit 32 on its si_code; target: its
    /// si_addr.
    Fault = 10,
    /// INT3, INT1, INT n at ip; extra: the vector.
    SoftInt = 11,
    /// User code continues at target; flags: a `ResumeReason`.
    Resume = 12,
    /// The thread is switched out and in at ip.
    Switch = 13,
    /// A new thread. ip: its process; target, extra: the parent's tid and process.
    Thread = 14,
    /// A thread ended. ip: the wait status.
    Exit = 15,
    /// Process ip runs a new program, the blob's; its mappings are gone.
    Exec = 16,
    /// The thread's name is in the blob; ip: its process.
    Comm = 17,
    /// `target` bytes of executable mapping at ip; the blob: see `parse_mmap`.
    Mmap = 18,
    /// The blob's bytes are at ip.
    Code = 19,
    /// A text, in the blob.
    Warning = 20,
    /// Nothing follows. ip: the first program's wait status; target: how many edges of the recording window were
    /// passed (without a start edge: one more).
    End = 21,
}

impl From<EventKind> for u8 {
    fn from(kind: EventKind) -> u8 {
        kind as u8
    }
}

impl EventKind {
    /// Returns the kind with this number.
    pub fn from_u8(number: u8) -> Option<EventKind> {
        EventKind::ALL
            .get(usize::from(number).checked_sub(1)?)
            .copied()
    }

    /// All kinds, in the order of their numbers from 1.
    pub const ALL: [EventKind; 21] = [
        EventKind::Conditional,
        EventKind::Jump,
        EventKind::Call,
        EventKind::IndirectJump,
        EventKind::IndirectCall,
        EventKind::Return,
        EventKind::Far,
        EventKind::Syscall,
        EventKind::Interrupt,
        EventKind::Fault,
        EventKind::SoftInt,
        EventKind::Resume,
        EventKind::Switch,
        EventKind::Thread,
        EventKind::Exit,
        EventKind::Exec,
        EventKind::Comm,
        EventKind::Mmap,
        EventKind::Code,
        EventKind::Warning,
        EventKind::End,
    ];
}

/// Why user code continues: the flags of `EventKind::Resume`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum ResumeReason {
    SystemCall = 0,
    Handler = 1,
    Exec = 2,
    Thread = 3,
    Other = 4,
}

impl From<ResumeReason> for u8 {
    fn from(kind: ResumeReason) -> u8 {
        kind as u8
    }
}

/// Records of QEMU's plugin that are no capture events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum MessageKind {
    /// A process connects; ip: its pid. The recorder replies with one byte.
    Hello = 40,
    /// Packets of the thread's trace unit.
    Packets = 41,
    /// Records of a truth file.
    Truth = 42,
    /// target, extra: traced instructions and branches of the thread so far.
    Traced = 43,
    /// With a file: the counts of process `ip`. Without: the thread, which goes on in another program, has executed
    /// `target` instructions in this one.
    Counts = 44,
}

impl From<MessageKind> for u8 {
    fn from(kind: MessageKind) -> u8 {
        kind as u8
    }
}

/// Bits of a record's flags. Each name begins with the kind of the record.
pub mod flag {
    pub const CONDITIONAL_TAKEN: u8 = 1;
    /// `target` is 32-bit code.
    pub const FAR_TO_32_BIT: u8 = 1;
    /// `target` is 32-bit code. The other bits are a `ResumeReason`.
    pub const RESUME_32_BIT: u8 = 128;
    /// User code was interrupted at `ip`, which has not been executed.
    pub const SWITCH_IN_USER: u8 = 1;
    /// Tracing is on from here on.
    pub const SWITCH_TURNS_ON: u8 = 2;
    /// Tracing is off from here on.
    pub const SWITCH_TURNS_OFF: u8 = 4;
    /// The thread runs in the address space of its parent.
    pub const THREAD_SHARES_MEMORY: u8 = 1;
    /// Tracing is off until a SWITCH turns it on.
    pub const THREAD_UNTRACED: u8 = 2;
    /// The thread lives on untraced.
    pub const EXIT_DETACHED: u8 = 1;
    /// This thread took the signal that ended the process.
    pub const EXIT_TOOK_SIGNAL: u8 = 2;
    /// The whole process ended so (QEMU).
    pub const EXIT_WHOLE_PROCESS: u8 = 4;
    /// The name comes from exec.
    pub const COMM_BY_EXEC: u8 = 1;
    /// The blob continues with the first bytes of the file, and CODE with CODE_OF_MAPPING has the mapped bytes: the
    /// reader may find another file by this path, or a changed one.
    pub const MMAP_WITH_CONTENTS: u8 = 1;
    /// The bytes are those of the last mapping there, which is MMAP_WITH_CONTENTS.
    pub const CODE_OF_MAPPING: u8 = 1;
    /// Process `ip` is about to run a program unrecorded (QEMU).
    pub const WARNING_LEAVES: u8 = 2;
    /// Process `ip` stays recorded, because its exec has failed (QEMU).
    pub const WARNING_STAYS: u8 = 4;
    /// The counts of a process are missing (QEMU).
    pub const WARNING_UNCOUNTED: u8 = 8;
    /// The tracer killed the program.
    pub const END_KILLED: u8 = 1;
    /// The blob continues in the next message of this thread (QEMU).
    pub const PACKETS_CONTINUE: u8 = 1;
}
