//! Errors of a stream. Each has the offset of the packet at which it was noticed, a bad value and a class.
//!
//! The numbers and names of [`ErrorClass`] are those that Python sees.

use std::fmt;

use rtit_packet::PacketError;

named_enum! {
    /// Kinds of errors. The numbers are those of the `class` column that Python sees.
    ErrorClass {
        /// Bytes that are no legal packet.
        BadBytes = 1, "bad bytes";
        /// The code that ran is not in the image, or is no instruction there.
        CodeNotFound = 2, "code not found";
        /// The packets contradict the code.
        Disagreement = 3, "trace and code disagree";
        /// The hardware reported that it lost packets (OVF).
        HardwareLoss = 4, "loss reported by hardware";
        /// A legal stream that cannot be followed.
        Unsupported = 5, "unsupported";
        /// The stream begins or ends within something: nothing is wrong, and nothing can be said.
        Incomplete = 6, "incomplete";
        /// A loop without packets ran an unknown number of times before an event ended it. Each of its instructions
        /// ran; one iteration is reported.
        UnknownRepetitions = 7, "unknown repetitions";
        /// Code ran before or after a thread switch: it is reported for the thread before the switch.
        AmbiguousThread = 8, "ambiguous thread";
    }
}

impl ErrorClass {
    /// One more than the highest number.
    pub(crate) const COUNT: usize = ErrorClass::ALL.len() + 1;
}

/// The cause of an error. Addresses are instruction pointers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorCause {
    /// Bytes that are no packet.
    Packet(PacketError),
    /// The bytes before the first PSB.
    BeforePsb,
    /// The stream ends within a packet.
    CutPacket,
    /// OVF: the processor dropped packets.
    Overflow,
    /// Nothing is mapped at the address (or only a part of the instruction).
    Unmapped { ip: u64 },
    /// The bytes at the address are no instruction.
    Undecodable { ip: u64 },
    /// The code loops from this address without anything that a packet could decide.
    EndlessLoop { ip: u64 },
    /// Branch results arrived where the instruction at the address takes none.
    UnexpectedResult { ip: u64 },
    /// A not-taken result at a near RET.
    NotTakenReturn { ip: u64 },
    /// A compressed RET without a call to go with it.
    EmptyStack { ip: u64 },
    /// A TIP or TIP.PGD arrived where the instruction at the address makes none.
    UnexpectedTarget { ip: u64 },
    /// The stream has no branch results (DisTNT), and a conditional branch was reached.
    NoResults { ip: u64 },
    /// Branch results were unused when a packet arrived that follows them.
    ResultsLeft { count: u64 },
    /// The address of a FUP, or the target of a TIP.PGD, is not on the path.
    NotReached { ip: u64 },
    /// The FUP of a PSB+ is not on the path that was followed.
    Seam { ip: u64 },
    /// PSB+ names another mode than the one that was followed; `ip` is that of its FUP.
    OtherMode { ip: u64 },
    /// A PSB+ has a FUP (`ip`), so tracing is on, while it was off.
    OnUnannounced { ip: u64 },
    /// A PSB+ has no FUP, so tracing is off, while it was on.
    OffUnannounced,
    /// An event struck at a VM entry and turned tracing off, or, by erratum SKD022, the VM entry ran and did.
    VmEntryOrEvent { ip: u64 },
    /// The MOV CR3 at the address stopped the trace, or a branch after it did.
    MovCr3OrBranch { ip: u64 },
    /// User code continued over the time at which the schedule gives the processor to another thread.
    ContinuedOverSwitch { since: u64 },
    /// An event struck at the address, in a loop of so many instructions that makes no packet.
    Repeats { ip: u64, instructions: u32 },
    /// Code from the packet at offset `from` on ran before or after `since`, when another thread got the processor.
    AmbiguousThread { since: u64, from: u64 },
    /// User code continues with the CR3 of another process than the one that has the processor.
    OtherProcess { cr3: u64 },
    /// The packet is not allowed here.
    UnexpectedPacket { name: &'static str },
    /// A packet that Table 33-15 forbids between BBP and BEP.
    InBlock { name: &'static str },
    /// CFE of type `kind` after EVDs that are not of such an event (Table 33-51).
    OtherEvent { kind: u8 },
    /// The packet should carry an IP and does not.
    NoIp { name: &'static str },
}

impl ErrorCause {
    pub const fn error_class(&self) -> ErrorClass {
        match self {
            ErrorCause::Packet(_) => ErrorClass::BadBytes,
            ErrorCause::BeforePsb | ErrorCause::CutPacket => ErrorClass::Incomplete,
            ErrorCause::Overflow => ErrorClass::HardwareLoss,
            ErrorCause::Repeats { .. } => ErrorClass::UnknownRepetitions,
            ErrorCause::AmbiguousThread { .. } => ErrorClass::AmbiguousThread,
            ErrorCause::Unmapped { .. } | ErrorCause::Undecodable { .. } => {
                ErrorClass::CodeNotFound
            }
            ErrorCause::NoResults { .. }
            | ErrorCause::VmEntryOrEvent { .. }
            | ErrorCause::MovCr3OrBranch { .. } => ErrorClass::Unsupported,
            _ => ErrorClass::Disagreement,
        }
    }

    /// Returns the bad value: an address or a number; 0 if there is none.
    pub const fn bad_value(&self) -> u64 {
        match *self {
            ErrorCause::Unmapped { ip }
            | ErrorCause::Undecodable { ip }
            | ErrorCause::EndlessLoop { ip }
            | ErrorCause::UnexpectedResult { ip }
            | ErrorCause::NotTakenReturn { ip }
            | ErrorCause::EmptyStack { ip }
            | ErrorCause::UnexpectedTarget { ip }
            | ErrorCause::NoResults { ip }
            | ErrorCause::NotReached { ip }
            | ErrorCause::OnUnannounced { ip }
            | ErrorCause::OtherMode { ip }
            | ErrorCause::VmEntryOrEvent { ip }
            | ErrorCause::MovCr3OrBranch { ip }
            | ErrorCause::Repeats { ip, .. }
            | ErrorCause::Seam { ip } => ip,
            ErrorCause::ResultsLeft { count } => count,
            ErrorCause::ContinuedOverSwitch { since } => since,
            ErrorCause::AmbiguousThread { from, .. } => from,
            ErrorCause::OtherProcess { cr3 } => cr3,
            ErrorCause::OtherEvent { kind } => kind as u64,
            _ => 0,
        }
    }
}

impl fmt::Display for ErrorCause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            ErrorCause::Packet(ref error) => error.to_string(),
            ErrorCause::BeforePsb => "before the first PSB".into(),
            ErrorCause::CutPacket => "the stream ends within a packet".into(),
            ErrorCause::Overflow => "the processor dropped packets (OVF)".into(),
            ErrorCause::Unmapped { ip } => format!("no code is known at {ip:#x}"),
            ErrorCause::Undecodable { ip } => format!("the bytes at {ip:#x} are no instruction"),
            ErrorCause::EndlessLoop { ip } => format!("the code loops forever at {ip:#x}"),
            ErrorCause::UnexpectedResult { ip } => {
                format!("a branch result for the instruction at {ip:#x}, which takes none")
            }
            ErrorCause::NotTakenReturn { ip } => format!("a not-taken result for the RET at {ip:#x}"),
            ErrorCause::EmptyStack { ip } => {
                format!("a compressed RET at {ip:#x} without a matching call")
            }
            ErrorCause::UnexpectedTarget { ip } => {
                format!("a target for the instruction at {ip:#x}, which takes none")
            }
            ErrorCause::NoResults { ip } => {
                format!("conditional branch at {ip:#x} in a stream without TNT (DisTNT)")
            }
            ErrorCause::ResultsLeft { count } => format!("{count} branch results were left over"),
            ErrorCause::NotReached { ip } => format!("{ip:#x} is not on the path"),
            ErrorCause::Seam { ip } => format!("PSB+ gives {ip:#x}, which is not on the path"),
            ErrorCause::OtherMode { ip } => {
                format!("PSB+ at {ip:#x} names a mode that no MODE.Exec announced")
            }
            ErrorCause::VmEntryOrEvent { ip } => {
                format!("whether the VM entry at {ip:#x} ran depends on the processor (SKD022)")
            }
            ErrorCause::MovCr3OrBranch { ip } => {
                format!("the trace stopped at the MOV CR3 at {ip:#x} or at a branch after it")
            }
            ErrorCause::OnUnannounced { ip } => {
                format!("PSB+ gives {ip:#x} though no TIP.PGE turned tracing on")
            }
            ErrorCause::ContinuedOverSwitch { since } => format!(
                "another thread had the processor from TSC {since:#x} on, yet user code continued: \
                 its thread is not certain"
            ),
            ErrorCause::AmbiguousThread { since, from } => format!(
                "code from offset {from:#x} on ran before or after TSC {since:#x}, when another thread \
                 got the processor: no packet gives the time in between"
            ),
            ErrorCause::OtherProcess { cr3 } => format!(
                "CR3 {cr3:#x} belongs to another process than the one that has the processor: \
                 the process of this code is not certain"
            ),
            ErrorCause::OffUnannounced => "PSB+ gives no IP though no TIP.PGD turned tracing off".into(),
            ErrorCause::Repeats { ip, instructions } => format!(
                "a loop of {instructions} instructions without a packet was left at {ip:#x}: \
                 the number of iterations is not known"
            ),
            ErrorCause::UnexpectedPacket { name } => format!("{name} is not allowed here"),
            ErrorCause::InBlock { name } => format!("{name} is not allowed within a block"),
            ErrorCause::OtherEvent { kind } => format!("CFE of type {kind:#x} after EVDs of another event"),
            ErrorCause::NoIp { name } => format!("{name} without an IP"),
        };
        out.write_str(&text)
    }
}

/// An error of a stream: its cause and its offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowError {
    /// Stream offset, in bytes, of the packet at which it was noticed.
    pub offset: u64,
    pub cause: ErrorCause,
}

impl fmt::Display for FlowError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            // its text names the offset already
            ErrorCause::Packet(error) => error.fmt(out),
            cause => write!(out, "{cause} at offset {:#x}", self.offset),
        }
    }
}

impl std::error::Error for FlowError {}
