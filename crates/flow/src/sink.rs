//! The interface between the decoder and its consumers.
//!
//! A decoder reports executed code as fragments of runs: `extend_run` for contiguous instructions, `end_run` where the
//! run ends, `add_edge` for each branch. A [`Sink`] is a type parameter, so that each sink gets its own decode loop
//! without the calls that it ignores. [`SinkNeeds`] determines what the transition tables may leave out: a sink that
//! only counts gets transitions added up, one that needs the order gets them one by one ([`TakenTransition`]), and one
//! with `SinkNeeds::Interpreter` gets none at all.

use rtit_x86::CodeMode;

use crate::backpressure::UnreportedPath;
use crate::event::Event;
use crate::totals::Totals;

named_enum! {
    /// Why a run ended: the kind of its last instruction, or what interrupted it.
    RunEnd {
        /// The run continues in the next row.
        Cut = 0, "cut";
        /// A conditional branch that was taken.
        Conditional = 1, "conditional";
        Jump = 2, "jump";
        Call = 3, "call";
        IndirectJump = 4, "indirect jump";
        IndirectCall = 5, "indirect call";
        Return = 6, "return";
        /// Far JMP, CALL, RET, IRET and the like.
        Far = 7, "far";
        /// SYSCALL, SYSENTER. Among edges also INT 80H.
        Syscall = 8, "syscall";
        /// VMLAUNCH, VMRESUME.
        VmEntry = 9, "vm entry";
        /// An event struck before the next instruction.
        Event = 10, "event";
        /// Tracing was turned off after an instruction that is no transfer (MOV CR3).
        Off = 11, "off";
        /// What followed is lost.
        Lost = 12, "lost";
        /// The stream ended.
        EndOfStream = 13, "end of stream";
    }
}

/// Contiguous instructions that ran one after the other, at least one: a run, or a part of one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RunFragment<'a> {
    /// IP of the first instruction.
    pub start: u64,
    /// IP of the last instruction.
    pub last: u64,
    /// Length of each instruction, in bytes.
    pub lengths: &'a [u8],
    /// The hash over the IPs, started at 0 (see `hash`).
    pub hash: u64,
    /// `hash::K` to the power of the number of instructions.
    pub factor: u64,
    /// Mode in which the instructions were decoded.
    pub mode: CodeMode,
    /// Index of the address space's view in `AddressSpaces`; 0 is the default.
    pub space: u32,
}

impl RunFragment<'_> {
    /// The IP of each instruction.
    pub fn instruction_addresses(&self) -> impl Iterator<Item = u64> + '_ {
        let lengths = self.lengths.iter();
        lengths.scan(self.start, |ip, &length| {
            let here = *ip;
            *ip = here.wrapping_add(u64::from(length));
            Some(here)
        })
    }
}

/// What a sink needs of executed code; the transition tables (module `transitions`) leave out the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SinkNeeds {
    /// Every call, from the interpreter: no transition tables.
    Interpreter,
    /// Only the decoder's counts.
    Counts,
    /// Sums of runs and edges, from `Decoder::take_totals`.
    Totals,
    /// Everything in order, as whole transitions.
    Order,
    /// How often each transition was taken, by `Sink::add_transition_count` whenever decoding pauses.
    TransitionCounts,
}

/// A transition that was taken, for a sink that needs the order.
pub trait TakenTransition {
    /// Identifies the transition within its generation.
    fn transition_id(&self) -> u32;
    fn transition_generation(&self) -> u32;
    /// Stream offset of its first packet.
    fn first_packet_offset(&self) -> u64;
    /// Times before and after its first branch, as for `Sink::extend_run`.
    fn branch_times(&self) -> (u64, u64);
    /// Reports it as the interpreter would, by `extend_run`, `end_run` and `add_edge`.
    fn replay_to_sink<S: Sink>(&self, sink: &mut S) {
        self.replay_with_times(self.branch_times(), sink);
    }
    /// Does as `replay_to_sink`, with other times.
    fn replay_with_times<S: Sink>(&self, times: (u64, u64), sink: &mut S);
}

/// A transition in the log.
#[derive(Clone, Copy, Default, Debug)]
pub struct LoggedTransition {
    pub number: u32,
    pub offset: u64,
    pub times: (u64, u64),
}

/// Transitions that were taken one after the other.
pub trait TakenTransitions {
    /// The generation of all of them.
    fn transition_generation(&self) -> u32;
    fn logged_transitions(&self) -> &[LoggedTransition];
    /// The address space of all of them.
    fn address_space_index(&self) -> u32;
    /// Returns one of them.
    fn resolve_logged(&self, logged: LoggedTransition) -> impl TakenTransition;
}

/// Rows and instructions that a sink still takes before it is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SinkCapacity {
    pub rows: usize,
    pub instructions: usize,
}

impl SinkCapacity {
    pub const UNLIMITED: SinkCapacity = SinkCapacity {
        rows: usize::MAX,
        instructions: usize::MAX,
    };

    /// Capacity of a sink that has `waiting` rows and takes `limit`.
    pub fn for_rows(limit: usize, waiting: usize) -> SinkCapacity {
        SinkCapacity {
            rows: limit.saturating_sub(waiting),
            ..SinkCapacity::UNLIMITED
        }
    }

    /// Capacity of a sink that has `waiting` instructions and takes `limit`.
    pub fn for_instructions(limit: usize, waiting: usize) -> SinkCapacity {
        SinkCapacity {
            instructions: limit.saturating_sub(waiting),
            ..SinkCapacity::UNLIMITED
        }
    }
}

/// Consumes the results of decoding.
pub trait Sink {
    /// Whether `add_edge` is called.
    const NEEDS_EDGES: bool = false;
    const NEEDS: SinkNeeds = SinkNeeds::Interpreter;
    /// Whether the sink uses the offsets of packets.
    const HAS_PACKET_OFFSETS: bool = true;
    /// Whether `defer_path` may be called: only for `BackpressureSink`.
    #[doc(hidden)]
    const DEFERS_PATHS: bool = false;

    /// The calls that follow belong to the packet at `offset`.
    fn begin_packet(&mut self, _offset: u64) {}
    /// The open run, or a new one, continues with `fragment`. `time`: TSC (a lower bound) at its start.
    fn extend_run(&mut self, fragment: &RunFragment<'_>, time: u64);
    /// Ends the open run, if any. `offset`: of the packet that showed it.
    fn end_run(&mut self, end: RunEnd, offset: u64);
    /// The instruction at `from` led to `to`, whether decoding continues there or not. A conditional branch that was
    /// not taken has the kind `Cut`. A system call into code that is not traced has the target 0.
    fn add_edge(&mut self, _from: u64, _to: u64, _kind: RunEnd) {}
    /// The last edge led into this address space, perhaps another one.
    fn note_entered_space(&mut self, _space: u32) {}
    fn add_event(&mut self, event: &Event);
    /// The loop of these instructions may have run more often than reported: it emits no packets.
    fn note_unknown_repetitions(&mut self, _round: &[u64]) {}
    /// From here on the code is that of `time`. A sink that reads code moves its own view forward.
    fn set_code_time(&mut self, _time: u64) {}
    /// Called before `set_code_time`: returns the totals that all transitions before `time` must be added to
    /// (`SinkNeeds::Totals`), if the sink separates them from those after it.
    fn totals_before(&mut self, _time: u64) -> Option<&mut Totals> {
        None
    }
    /// A transition was taken (`SinkNeeds::Order`). Equivalent to the calls that `replay_to_sink` makes.
    #[inline]
    fn take_transition(&mut self, transition: &impl TakenTransition)
    where
        Self: Sized,
    {
        transition.replay_to_sink(self);
    }
    /// Does as `take_transition`, for several.
    #[inline]
    fn take_transitions(&mut self, transitions: &impl TakenTransitions)
    where
        Self: Sized,
    {
        for &logged in transitions.logged_transitions() {
            self.take_transition(&transitions.resolve_logged(logged));
        }
    }
    /// A transition was taken `times` times since the last call for it (`SinkNeeds::TransitionCounts`).
    fn add_transition_count(&mut self, transition: &impl TakenTransition, times: u64)
    where
        Self: Sized,
    {
        for _ in 0..times {
            transition.replay_to_sink(self);
        }
    }
    /// Does as `add_edge`, `times` times: counts of removed transitions (`SinkNeeds::TransitionCounts`).
    fn add_counted_edge(&mut self, from: u64, to: u64, kind: RunEnd, times: u64) {
        for _ in 0..times {
            self.add_edge(from, to, kind);
        }
    }
    /// What the sink still takes by transitions before it is full.
    fn remaining_capacity(&self) -> SinkCapacity {
        SinkCapacity::UNLIMITED
    }
    /// Execution ran through a path that a full sink gets later.
    #[doc(hidden)]
    fn defer_path(&mut self, _path: UnreportedPath) {}
    /// Whether decoding should pause: at the next packet, or within a long path.
    fn is_full(&self) -> bool {
        false
    }
}

/// A sink that takes nothing, for the counts of the decoder alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingSink;

impl Sink for CountingSink {
    const NEEDS: SinkNeeds = SinkNeeds::Counts;
    const HAS_PACKET_OFFSETS: bool = false;

    #[inline]
    fn extend_run(&mut self, _fragment: &RunFragment<'_>, _time: u64) {}
    #[inline]
    fn end_run(&mut self, _end: RunEnd, _offset: u64) {}
    fn add_event(&mut self, _event: &Event) {}
}

/// Longer runs are cut: columns count instructions in 32 bits, and a node adds 512 at most.
pub(crate) const MAX_RUN_INSTRUCTIONS: u32 = 1 << 31;
