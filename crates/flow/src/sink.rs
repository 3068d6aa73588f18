//! What becomes of the flow. A sink is a type parameter: each gets a loop of its own with nothing in it that it does
//! not need.

use rtit_x86::Mode;

use crate::ahead::Ahead;
use crate::event::Event;

/// Why a run ended: what its last instruction did, or what came between.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum End {
    /// Cut without a reason in the program: the run goes on in the next row.
    Cut = 0,
    /// A conditional branch that was taken.
    Conditional = 1,
    Jump = 2,
    Call = 3,
    IndirectJump = 4,
    IndirectCall = 5,
    Return = 6,
    /// Far JMP, CALL, RET, IRET and their kin.
    Far = 7,
    Syscall = 8,
    /// An event struck before the next instruction.
    Event = 9,
    /// Tracing was turned off after an instruction that is no transfer (MOV CR3).
    Off = 10,
    /// What followed is lost.
    Lost = 11,
    /// The stream ended.
    EndOfStream = 12,
    /// VMLAUNCH, VMRESUME.
    VmEntry = 13,
}

impl End {
    pub const ALL: [End; 14] = [
        End::Cut,
        End::Conditional,
        End::Jump,
        End::Call,
        End::IndirectJump,
        End::IndirectCall,
        End::Return,
        End::Far,
        End::Syscall,
        End::Event,
        End::Off,
        End::Lost,
        End::EndOfStream,
        End::VmEntry,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            End::Cut => "cut",
            End::Conditional => "conditional",
            End::Jump => "jump",
            End::Call => "call",
            End::IndirectJump => "indirect jump",
            End::IndirectCall => "indirect call",
            End::Return => "return",
            End::Far => "far",
            End::Syscall => "syscall",
            End::Event => "event",
            End::Off => "off",
            End::Lost => "lost",
            End::EndOfStream => "end of stream",
            End::VmEntry => "vm entry",
        }
    }
}

/// Instructions that ran one after the other in memory order: at least one.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
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
    /// How the instructions were decoded.
    pub mode: Mode,
    /// The address space: 0 is the one without a key, the others are counted as they were added to `Spaces`.
    pub space: u32,
}

impl Sequence<'_> {
    /// The IP of each instruction.
    pub fn ips(&self) -> impl Iterator<Item = u64> + '_ {
        let lengths = self.lengths.iter();
        lengths.scan(self.start, |ip, &length| {
            let here = *ip;
            *ip = here.wrapping_add(u64::from(length));
            Some(here)
        })
    }
}

/// What steps (module `steps`) may leave out for a sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wants {
    /// Nothing: there are no steps for this sink.
    Walk,
    /// All but the counts.
    Counts,
    /// The order: runs and edges are added up and come from `Decoder::take_totals`.
    Totals,
    /// Nothing of the flow, but that it comes as whole steps.
    Order,
    /// The order: how often each step was taken comes by `Sink::hits` whenever decoding pauses.
    Hits,
}

/// A step that was taken, for a sink that wants the order.
pub trait Step {
    /// What it does is known by this number as long as the epoch stays the same.
    fn number(&self) -> u32;
    fn epoch(&self) -> u32;
    /// Stream offset of its packet, the first one if it has several.
    fn offset(&self) -> u64;
    /// The time up to its first branch, and from there on, as `Sink::append` has it.
    fn times(&self) -> (u64, u64);
    /// Tells a sink of it as the walker would, by `append`, `close` and `edge`.
    fn replay<S: Sink>(&self, sink: &mut S) {
        self.replay_at(self.times(), sink);
    }
    /// As `replay`, at other times.
    fn replay_at<S: Sink>(&self, times: (u64, u64), sink: &mut S);
}

/// A step among others.
#[derive(Clone, Copy, Default, Debug)]
pub struct Placed {
    pub number: u32,
    pub offset: u64,
    pub times: (u64, u64),
}

/// Steps that were taken one after the other.
pub trait Steps {
    /// Of all of them, as `Step` has it.
    fn epoch(&self) -> u32;
    fn placed(&self) -> &[Placed];
    /// The address space of all of them, as `Sequence` has it.
    fn space(&self) -> u32;
    /// One of them.
    fn step(&self, placed: Placed) -> impl Step;
}

/// How much more a sink takes before it is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    pub rows: usize,
    pub instructions: usize,
}

impl Room {
    pub const NO_END: Room = Room {
        rows: usize::MAX,
        instructions: usize::MAX,
    };

    /// Of a sink with `waiting` of at most `limit` rows.
    pub fn for_rows(limit: usize, waiting: usize) -> Room {
        Room {
            rows: limit.saturating_sub(waiting),
            ..Room::NO_END
        }
    }

    /// Of a sink with `waiting` of at most `limit` instructions.
    pub fn for_instructions(limit: usize, waiting: usize) -> Room {
        Room {
            instructions: limit.saturating_sub(waiting),
            ..Room::NO_END
        }
    }
}

/// Takes the flow as it is found out. Sequences of one run arrive in order; `close` ends the run.
pub trait Sink {
    /// Whether `edge` is called.
    const EDGES: bool = false;
    const WANTS: Wants = Wants::Walk;
    /// Whether it says which packet a row came from.
    const PLACES: bool = true;
    /// Whether `hold_back` is called: only of what a decoder puts before its sink.
    #[doc(hidden)]
    const HOLDS: bool = false;

    /// What is told until the next call of this comes from the packet at `offset`.
    fn packet(&mut self, _offset: u64) {}
    /// `time`: TSC estimate (a lower bound) at the start of the sequence.
    fn append(&mut self, sequence: &Sequence<'_>, time: u64);
    /// The open run, if any, ends; `offset` is that of the packet that showed it.
    fn close(&mut self, end: End, offset: u64);
    /// The instruction at `from` sent the program to `to`, as code or trace tell, whether it is followed there or not.
    /// A conditional branch that was not taken is of kind `Cut`.
    fn edge(&mut self, _from: u64, _to: u64, _kind: End) {}
    /// The last edge led into this address space, which may be another than it came from; `Sequence` numbers them.
    fn landed(&mut self, _space: u32) {}
    fn event(&mut self, event: &Event);
    /// The program may have run these instructions any number of times more, one after the other, before what comes next.
    fn repeats(&mut self, _round: &[u64]) {}
    /// From here on the code is that of `time`. A sink that reads code itself moves its own view on.
    fn advance(&mut self, _time: u64) {}
    /// A step, if the sink wants the order: as if what it holds had come by `append` and `close`.
    #[inline]
    fn step(&mut self, step: &impl Step)
    where
        Self: Sized,
    {
        step.replay(self);
    }
    /// As `step`, of some.
    #[inline]
    fn steps(&mut self, steps: &impl Steps)
    where
        Self: Sized,
    {
        for &placed in steps.placed() {
            self.step(&steps.step(placed));
        }
    }
    /// A step that was taken so many times since this was called for it before, if the sink wants hits.
    fn hits(&mut self, step: &impl Step, times: u64)
    where
        Self: Sized,
    {
        for _ in 0..times {
            step.replay(self);
        }
    }
    /// As `edge`, so many times: what was counted of steps that are not known any more, if the sink wants hits.
    fn edge_times(&mut self, from: u64, to: u64, kind: End, times: u64) {
        for _ in 0..times {
            self.edge(from, to, kind);
        }
    }
    /// What may come as steps before the sink is full.
    fn room(&self) -> Room {
        Room::NO_END
    }
    /// The program runs on, of which a sink that is full is to be told later.
    #[doc(hidden)]
    fn hold_back(&mut self, _ahead: Ahead) {}
    /// True when enough is waiting to be taken: decoding pauses at the next packet, or on a long way through code.
    fn is_full(&self) -> bool {
        false
    }
}

/// Counts nothing itself: the decoder's own counts are all that is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

impl Sink for Counting {
    const WANTS: Wants = Wants::Counts;
    const PLACES: bool = false;

    #[inline]
    fn append(&mut self, _sequence: &Sequence<'_>, _time: u64) {}
    #[inline]
    fn close(&mut self, _end: End, _offset: u64) {}
    fn event(&mut self, _event: &Event) {}
}

/// A longer run is cut: its count has 32 bits, and a node adds some hundred at most.
pub(crate) const MAX_RUN: u32 = 1 << 31;
