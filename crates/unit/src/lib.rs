//! The bulk packetizer: what user mode does, as events, to Intel PT bytes. No files, no Python.
//!
//! It gives the same bytes as the unit of `rtit.unit` for the same events and settings, fast enough to run inside an
//! emulator. One `Unit` a thread.
//!
//! ```
//! use rtit_unit::{Settings, Unit};
//!
//! let mut unit = Unit::new(&Settings::default())?;
//! unit.run(0x40_1000); // user code begins
//! unit.at(3)?; // the third instruction is
//! unit.conditional(0x40_1008, 0x40_1000, true); // a taken branch
//! unit.at(4)?;
//! unit.syscall();
//! let bytes = unit.take();
//! assert_eq!(bytes[bytes.len() - 2..], [0x06, 0x01]); // TNT(T), TIP.PGD
//! # Ok::<(), rtit_unit::Error>(())
//! ```
//!
//! Where to start reading: `branches`, `transfers` (the events); `control`, `timing`, `packets` (what they lead to);
//! `unit`, `state`, `settings`.

#![forbid(unsafe_code)]

mod branches;
mod buffer;
mod clocks;
mod compression;
mod control;
mod driver;
mod encode;
mod error;
mod event;
mod filter;
mod named;
mod overflow;
mod packets;
mod results;
pub mod settings;
mod state;
mod timing;
mod transfers;
mod unit;

pub use error::Error;
pub use event::{Event, Kind, RECORD};
pub use filter::{Range, RangeKind};
pub use results::Calls;
pub use settings::{Output, Parameters, Settings, TimeModel};
pub use state::{Core, State};
pub use unit::Unit;
