//! Decodes whole packets by table lookup: one load per packet instead of the interpreter.
//!
//! # The idea
//!
//! To a first approximation this is a finite automaton with packets as its alphabet. Its states are *code nodes*:
//! instructions that always run together, up to the next one at which a packet can take effect (see `code_cache`). What
//! a packet does at a node depends on the code alone, so it is computed once and kept as a *transition*:
//!
//! ```text
//! (node, short TNT byte)           -> node after up to six conditional branches
//! (node, IP of a TIP)              -> node at that IP
//! (node ending in RET, call site)  -> node after the call    (RET compression)
//! ```
//!
//! Programs run the same code again and again, so most packets are hits. The decode loop does not touch what ran on
//! the way. It counts the transition or logs its id; either is expanded afterwards from the list of nodes that the
//! transition visits (`node_visits`). Packets that often follow each other become one *fused* transition (`fused`).
//!
//! The approximation has one hole: a compressed RET takes its target from the return stack, which is not part of the
//! state. A RET that returns to a call within the same transition needs no stack. A RET to an earlier call ends the
//! transition in the middle of a TNT byte; it is looked up as a separate transition, and `DecodeCursor::pending_tnt`
//! holds the bits that are left. What a transition does to the stack is kept in 32 bits (`stack_effect`).
//!
//! # Fast path and reference
//!
//! The interpreter (module `interpreter`) can do everything and is the reference. The decode loop handles four kinds of
//! packets (short TNT, TIP, CYC, MTC) and stops before anything else: events, errors, PSB, a packet that another one
//! binds to, a missing transition. The caller then adds the transition and resumes, or has the interpreter decode the
//! packet. So only the interpreter reports errors, events and ledger entries, and nothing here handles errors.
//! `tests/all/transitions` decodes random programs and damaged traces both ways, also with tiny tables; the closed-loop
//! tests do so with every recording.
//!
//! # Invariants
//!
//! 1. A transition is complete or absent. It is built by following the code once (`packet_path`); if that meets
//!    anything but plain branches, nothing is inserted.
//! 2. Whenever the loop stops, offset, node, LastIP and return stack are what the interpreter would have at this point.
//! 3. No transition starts at or passes a dead node (one with code that has changed): those that do are removed before
//!    the loop runs again. The node *after* a transition may be dead; nothing starts there.
//! 4. No count is lost. Whoever removes a transition, by eviction too, gets its count (`EvictedTransition`), and counts
//!    are moved to addresses before node indices become invalid.
//! 5. The return stack has 64 entries and loses the oldest when calls nest deeper, also those that return within one
//!    transition. So an effect has the depth of its nested calls (`StackEffect::peak`).
//! 6. A fused transition equals its parts, one after the other: it is composed of them.

mod decode_loop;
mod fused;
mod node_visits;
mod packet_path;
mod store;
mod table;

pub(crate) use decode_loop::{DecodeCursor, StopReason, TimingEntry, READ_AHEAD};
pub(crate) use node_visits::{InstructionMixSum, TransitionLog, MAX_SUMMED};
pub(crate) use packet_path::tnt_outcomes;
pub(crate) use store::TransitionStore;
pub(crate) use table::NodeKey;
