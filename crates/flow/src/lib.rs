//! Reconstructs the executed path from Intel PT packets and the code bytes.
//!
//! | for | use |
//! |---|---|
//! | one stream, in columns or one by one | [`StreamDecoder`] with a [`Sink`]: [`RunSink`], [`InstructionSink`], [`BranchSink`], [`Totals`], [`HashedRunSink`], [`BlockIdSink`], [`CountingSink`], or your own |
//! | the same by several threads | [`OrderedDecoder`] for an [`OrderedSink`], [`AdditiveDecoder`] for a [`AdditiveSink`] |
//! | many short streams over the same code | [`ReusableDecoder`], with [`EdgeCounter`] and [`BitmapHash`] for a fuzzer's map |
//! | a stream that arrives in windows | [`Decoder`] |
//! | what became of each byte, and why something is lost | [`CoverageLedger`], [`FlowError`] |
//! | the code, of one address space or of several | [`rtit_image::Space`], [`AddressSpaces`] |
//! | how the stream was made | [`Settings`] |
//!
//! ```
//! use rtit_flow::{ByteStatus, Settings, StreamDecoder};
//! let mut space = rtit_image::Space::new();
//! space.map_bytes(0, 0x1000, [0x90, 0x74, 0x00, 0xff, 0xe0][..].into()); // nop; je 1003; jmp rax
//! // PSB, MODE.Exec, FUP 1000, PSBEND; TNT of one result, taken; TIP 2000
//! let mut stream = [0x02, 0x82].repeat(8);
//! stream.extend([0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23, 0x06, 0x2d, 0x00, 0x20]);
//!
//! let mut flow = StreamDecoder::for_instructions(stream, space.view_at_start(), &Settings::default());
//! let batch = flow.next_batch(100).unwrap();
//! assert_eq!((batch.ips, batch.lengths), (vec![0x1000, 0x1001, 0x1003], vec![1, 2, 2]));
//! assert!(flow.coverage_ledger().closed_spans().iter().all(|span| span.status == ByteStatus::Exact));
//! ```
//!
//! `examples/fuzzing_loop.rs` is a fuzzer's loop. No input makes this crate panic or use unbounded memory; errors of a
//! stream are in the ledger, and decoding continues after them. Nothing here opens a file or depends on Python.
//!
//! Below [`Decoder`] are `decoder` (applies each packet to the state of tracing), `interpreter` (follows the code),
//! `code_cache` (decoded nodes), `transitions` (transition tables, the fast path), `return_stack` (RET compression) and
//! `time` (timing packets to TSC).
//!
//! An instruction at which an event strikes (FUP) has not run, INT n and INT3 included; a SYSCALL at which a TIP.PGD
//! turns tracing off has run.

#![forbid(unsafe_code)]

/// Declares an enum: each variant has a number and a name, with `ALL` and `name`.
macro_rules! named_enum {
    (
        $(#[$doc:meta])*
        $enum:ident {
            $($(#[$variant_doc:meta])* $variant:ident = $number:literal, $name:literal;)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u8)]
        pub enum $enum {
            $($(#[$variant_doc])* $variant = $number,)+
        }

        impl $enum {
            pub const ALL: [$enum; [$($number),+].len()] = [$($enum::$variant),+];

            pub const fn name(self) -> &'static str {
                match self {
                    $($enum::$variant => $name,)+
                }
            }
        }
    };
}

mod address_spaces;
mod backpressure;
mod cancellation;
mod code_cache;
mod code_coverage;
mod coverage_ledger;
mod decoder;
mod edge_counter;
mod error;
mod event;
mod hash;
mod interpreter;
mod packet_clock;
mod return_stack;
mod segments;
mod settings;
mod sink;
mod sinks;
mod sorted_counter;
mod stream_decoder;
mod time;
mod totals;
mod transitions;

pub use address_spaces::{AddressSpaces, GuestViews, ScheduledThread, SpaceKey};
pub use cancellation::CancellationToken;
pub use code_cache::CodeCachePool;
pub use code_coverage::{
    count_instructions, find_conditional_branches, ConditionalBranch, InstructionCount,
    InstructionCounts,
};
pub use coverage_ledger::{ByteStatus, CoverageLedger, LedgerSpan};
pub use decoder::Decoder;
pub use edge_counter::{
    add_saturating_at_255, afl_count_class, BitmapHash, EdgeCounter, EdgeFilter,
};
pub use error::{ErrorCause, ErrorClass, FlowError};
pub use event::{Event, EventKind};
pub use hash::{mix_address, AddressMap, AddressSet, CountsBy, K};
pub use packet_clock::PacketClock;
pub use segments::{AdditiveDecoder, AdditiveSink, OrderedDecoder, ParallelConfig};
pub use settings::{
    CpuModel, Erratum, FilterRanges, InitialState, Settings, TransitionLimits, MAX_RANGES,
};
pub use sink::{
    CountingSink, LoggedTransition, RunEnd, RunFragment, Sink, SinkCapacity, SinkNeeds,
    TakenTransition, TakenTransitions,
};
pub use sinks::buffer_pool::{
    return_column_to_pool, take_empty_buffer, BufferPoolGuard, PooledNumber,
};
pub use sinks::{
    BlockIdColumns, BlockIdSink, BlockTable, BranchColumns, BranchSink, ColumnSink, HashedRun,
    HashedRunColumns, HashedRunSink, IndexedBranchSink, InstructionBlock, InstructionColumns,
    InstructionRun, InstructionSink, OrderedSink, PositionedEvent, RunColumns, RunSink,
};
pub use stream_decoder::{ReusableDecoder, StreamDecoder, StreamWindow, WindowSource};
pub use time::{GuestTsc, TimeSettings, TimingSample};
pub use totals::{EdgeTotal, PeriodTotals, RunTotal, StreamCounts, Totals, DEFAULT_MAX_COUNTERS};
