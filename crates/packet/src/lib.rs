//! Intel PT packets: bytes in, packets out. No files, no clock, no Python.
//!
//! ```
//! use rtit_packet::{PacketKind, PacketScanner};
//!
//! let mut scanner = PacketScanner::new(&[0x02, 0x83, 0x59, 0x8b]);
//! let first = scanner.next().unwrap().unwrap();
//! assert_eq!((first.offset, first.length, first.kind), (0, 2, PacketKind::TraceStop));
//! let second = scanner.next().unwrap().unwrap();
//! assert_eq!(second.kind, PacketKind::Mtc { ctc: 0x8b });
//! assert!(scanner.next().is_none());
//! ```
//!
//! [`PacketScanner`] reads packets one by one and reports bad bytes, [`PacketColumns`] holds many at once, [`find_psb`]
//! finds the first position at which to begin.
//!
//! `table` is generated from the Python declarations (`python -m rtit.packets.rust_table`); everything here reads
//! headers, lengths and field positions from it.

#![forbid(unsafe_code)]

mod columns;
mod error;
mod packet;
mod read;
mod scan;
pub mod table;

pub use columns::PacketColumns;
pub use error::PacketError;
pub use packet::{IpPayload, Packet, PacketKind, TntPayload};
pub use scan::{find_psb, has_psb_within, PacketScanner, PSB};
pub use table::Kind;
