//! What can be wrong with the bytes.

use std::fmt;

/// Bytes that are no packet. `offset` is that of the packet's first byte in the scanned slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketError {
    /// The data ends inside a packet: the end of a stream, not a malformed one.
    Truncated { offset: usize },
    /// A first byte, or a byte after the escape 02H, that the chapter leaves undefined. `second` is there for escapes.
    UnknownOpcode {
        offset: usize,
        first: u8,
        second: Option<u8>,
    },
    /// A known packet with a reserved encoding in a byte that decides its meaning or its length.
    Reserved {
        offset: usize,
        packet: &'static str,
        byte: u8,
    },
    /// A TNT without stop bit, or with nothing below the stop bit.
    EmptyTnt { offset: usize },
    /// 02H 82H that does not go on to the 16 bytes of a PSB, or goes on behind them and to no second one.
    BrokenPsb { offset: usize },
    /// A packet within which a PSB begins.
    BrokenOff { offset: usize },
    /// A CYC longer than the 9 bytes that a decoder accepts.
    LongCyc { offset: usize },
}

impl PacketError {
    /// Offset of the first byte of the packet that could not be read.
    pub fn offset(&self) -> usize {
        match *self {
            Self::Truncated { offset }
            | Self::UnknownOpcode { offset, .. }
            | Self::Reserved { offset, .. }
            | Self::EmptyTnt { offset }
            | Self::BrokenPsb { offset }
            | Self::BrokenOff { offset }
            | Self::LongCyc { offset } => offset,
        }
    }

    /// True for data that ends inside a packet.
    pub fn is_truncated(&self) -> bool {
        matches!(self, Self::Truncated { .. })
    }
}

impl fmt::Display for PacketError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { offset } => {
                write!(out, "data ends inside the packet at offset {offset:#x}")
            }
            Self::UnknownOpcode {
                offset,
                first,
                second: None,
            } => {
                write!(
                    out,
                    "undefined packet opcode {first:02x} at offset {offset:#x}"
                )
            }
            Self::UnknownOpcode {
                offset,
                first,
                second: Some(second),
            } => {
                write!(
                    out,
                    "undefined packet opcode {first:02x} {second:02x} at offset {offset:#x}"
                )
            }
            Self::Reserved {
                offset,
                packet,
                byte,
            } => {
                write!(
                    out,
                    "reserved encoding {byte:02x} in {packet} at offset {offset:#x}"
                )
            }
            Self::EmptyTnt { offset } => write!(out, "TNT without results at offset {offset:#x}"),
            Self::BrokenPsb { offset } => write!(out, "PSB breaks off at offset {offset:#x}"),
            Self::BrokenOff { offset } => {
                write!(out, "a PSB begins within the packet at offset {offset:#x}")
            }
            Self::LongCyc { offset } => {
                write!(out, "CYC of more than 9 bytes at offset {offset:#x}")
            }
        }
    }
}

impl std::error::Error for PacketError {}
