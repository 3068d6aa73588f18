//! A whole system: each emulated processor, with kernel and programs, drives a trace unit of its own.
//!
//! QEMU's system emulation runs blocks as its user mode does, and the plugin interface reports their starts. What the
//! interface does not report comes from two other sources:
//!
//! * QEMU's log (`-d int,mmu`) has each interrupt and exception, with vector, IP, CPL and CR2, and each MOV to CR3.
//!   QEMU opens the log with `fopen64`; the preloaded library returns a stream of its own (`qemu_log`). QEMU then calls
//!   the plugin in the thread of the processor, between the blocks around the event.
//! * The processor's state, which generated code keeps at the address in rbp (`cpu_state`): CPL, the width of code, CR3
//!   and RFLAGS.IF.
//!
//! `processor` follows the blocks: it explains each transition from one block to the next by the end of the first block
//! and the events of the log, and reports it to the trace unit. A transition without an explanation becomes an overflow
//! in the trace and a warning. The executed path comes from the same blocks, but its part that filters let through is
//! chosen by the state of the processor, not by the trace unit.
//!
//! `address_filters` selects the part of the path that `--filter` lets through, and `trace_window` the part between
//! `--start-at` and `--stop-at`.
//!
//! `processors` has what several processors share. QEMU runs them in threads of their own, or all in one thread.
//!
//! `code_spaces` holds the code that the reader of the recording has, for each address space. `kernel_modules` reads
//! the symbols of a module from the kernel's memory, and `program_mappings` the files that programs map.

mod address_filters;
mod block;
mod callbacks;
mod code_spaces;
mod cpu_state;
mod kernel_modules;
mod processor;
mod processors;
mod program_mappings;
pub(crate) mod qemu_log;
mod trace_window;

pub(crate) use callbacks::install_system_plugin;
