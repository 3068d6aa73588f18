//! Code bytes of an address space over time, and symbols and source lines of ELF files.
//!
//! Where to start: [`Space`] records changes (map, poke, unmap, clear, fork), each with its time;
//! [`SpaceView`] is a cursor over a space that moves forward in time and answers reads; [`elf`] reads
//! build ids, segments and symbols; [`Pager`] requests pages when they are needed.
//!
//! ```
//! let mut space = rtit_image::Space::new();
//! space.map_bytes(0, 0x1000, [0x90, 0xc3][..].into());
//! space.overwrite_bytes(50, 0x1001, &[0xcc]); // written at time 50
//! let (mut view, mut out) = (space.view_at_start(), [0; 16]);
//! assert_eq!((view.read_instruction_bytes(0x1000, &mut out), out[1]), (2, 0xc3));
//! view.advance_to_time(50);
//! assert_eq!((view.read_instruction_bytes(0x1000, &mut out), out[1]), (2, 0xcc));
//! ```
//!
//! Nothing here opens a file, knows Python or decodes an
//! instruction.

#![forbid(unsafe_code)]

mod bytes;
mod demangle;
pub mod elf;
mod frames;
mod functions;
mod go_functions;
mod inlined_calls;
mod pager;
mod sections;
mod source_lines;
mod space;
mod symbols;
mod view;

pub use bytes::SharedBytes;
pub use demangle::demangle;
pub use elf::ElfError;
pub use frames::FrameRange;
pub use functions::{Function, FunctionRange, Functions};
pub use inlined_calls::{inlined_calls, InlinedCall, InlinedCalls, InlinedFunction, InlinedRange};
pub use pager::{PageError, PageSource, Pager, PAGE};
pub use source_lines::{source_line, source_lines, LineQuery, LineRange, SourceLines};
pub use space::Space;
pub use symbols::{join_symbols, Symbol, SymbolBinding, LINKAGE_TABLE};
pub use view::{ChangedCode, SpaceView};
