//! Intel PT packets plus code bytes: what ran.
//!
//! | what is wanted | type |
//! |---|---|
//! | one stream, its results in columns or one by one | [`Flow`] with a [`Sink`]: [`RunSink`], [`InstructionSink`], [`BranchSink`], [`Totals`], [`HashedRunSink`], [`BlockIdSink`], [`Counting`], or one's own |
//! | the same by several threads | [`OrderedDecoder`] for an [`OrderedSink`], [`AdditiveDecoder`] for a [`AdditiveSink`] |
//! | one short stream after the other over the same code | [`Persistent`], with [`EdgeCounter`] and [`BitmapHash`] for a fuzzer's map |
//! | packet by packet, the windows of a stream given from outside | [`Decoder`] |
//! | what is known of each byte, and why something is lost | [`Ledger`], [`FlowError`] |
//! | the code, of one address space or of several | [`rtit_image::Space`], [`Spaces`] |
//! | how the stream was made | [`Settings`] |
//!
//! ```
//! use rtit_flow::{Flow, Settings, Trust};
//! let mut space = rtit_image::Space::new();
//! space.map(0, 0x1000, [0x90, 0x74, 0x00, 0xff, 0xe0][..].into()); // nop; je 1003; jmp rax
//! // PSB, MODE.Exec, FUP 1000, PSBEND; TNT of one result, taken; TIP 2000
//! let mut stream = [0x02, 0x82].repeat(8);
//! stream.extend([0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23, 0x06, 0x2d, 0x00, 0x20]);
//!
//! let mut flow = Flow::instructions(stream, space.view(), &Settings::default());
//! let batch = flow.next_batch(100).unwrap();
//! assert_eq!((batch.ips, batch.lengths), (vec![0x1000, 0x1001, 0x1003], vec![1, 2, 2]));
//! assert!(flow.ledger().spans().iter().all(|span| span.trust == Trust::Exact));
//! ```
//!
//! `examples/fuzzing_loop.rs` is a fuzzer's loop. No input makes this crate panic or take memory without bound; what is wrong
//! with a stream is in the ledger, and decoding goes on behind it. Nothing here opens a file or knows Python.
//!
//! Below [`Decoder`] are `decoder` (what each packet does to the state of tracing), `walk` (how packets move the program
//! through the code), `code` (instructions decoded once into nodes), `transitions` (whole packets looked up), `stack` (RET
//! compression) and `time` (timing packets to TSC).
//!
//! An instruction at which an event strikes (FUP) has not run, INT n and INT3 included; a SYSCALL that TIP.PGD ends has.

#![forbid(unsafe_code)]

mod ahead;
mod bitmap;
mod code;
mod conditionals;
mod counts;
mod decoder;
mod edge_counter;
mod errata;
mod error;
mod event;
mod hash;
mod in_space;
mod instruction_counts;
mod ledger;
mod lookahead;
mod packet_clock;
mod perf_clock;
mod persistent;
mod segments;
mod settings;
mod sink;
mod sinks;
mod sorted_counter;
mod spaces;
mod stack;
mod stream;
mod time;
mod timing_samples;
mod totals;
mod transitions;
mod walk;
mod watch;
mod window;

pub use bitmap::{add_saturating, count_class, BitmapHash, EdgeFilter};
pub use code::Learned;
pub use conditionals::{conditionals, Conditional};
pub use counts::Counts;
pub use decoder::Decoder;
pub use edge_counter::EdgeCounter;
pub use errata::{Cpu, Errata, Erratum};
pub use error::{Cause, ErrorClass, FlowError};
pub use event::{Event, EventKind};
pub use hash::{mix, of_sequence, AddressMap, K};
pub use instruction_counts::{count_instructions, InstructionCount, InstructionCounts};
pub use ledger::{Ledger, Span, Trust};
pub use packet_clock::PacketClock;
pub use perf_clock::{PerfClock, PerfTime, PerfTimeKind};
pub use persistent::Persistent;
pub use segments::{AdditiveDecoder, AdditiveSink, OrderedDecoder, ParallelConfig};
pub use settings::{FilterRanges, Settings, Start, StepLimits, MAX_RANGES};
pub use sink::{Counting, End, Placed, Room, Sequence, Sink, Step, Steps, Wants};
pub use sinks::buffer_pool::{empty_buffer, recycle, BufferPoolGuard, PooledNumber};
pub use sinks::{
    Block, BlockIdColumns, BlockIdSink, BlockTable, BranchColumns, BranchSink, ColumnSink,
    HashedRun, HashedRunColumns, HashedRunSink, InstructionColumns, InstructionSink, OrderedSink,
    PlacedEvent, Run, RunColumns, RunSink,
};
pub use spaces::{Guest, SpaceKey, Spaces, Whose};
pub use stream::{Flow, RunIter};
pub use time::{GuestTsc, TimeSettings};
pub use timing_samples::TimingSample;
pub use totals::{EdgeTotal, RunTotal, Totals, DEFAULT_MAX_COUNTERS};
pub use watch::Watch;
pub use window::{Source, Window};
