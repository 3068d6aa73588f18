//! Errors in the bytes of a stream.

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
    /// 02H 82H that does not continue to the 16 bytes of a PSB, or continues after them, but not to a second one.
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
            Self::Truncated { .. } => write!(out, "data ends inside the packet")?,
            Self::UnknownOpcode { first, second, .. } => {
                write!(out, "undefined packet opcode {first:02x}")?;
                if let Some(second) = second {
                    write!(out, " {second:02x}")?;
                }
            }
            Self::Reserved { packet, byte, .. } => {
                write!(out, "reserved encoding {byte:02x} in {packet}")?;
            }
            Self::EmptyTnt { .. } => write!(out, "TNT without results")?,
            Self::BrokenPsb { .. } => write!(out, "PSB breaks off")?,
            Self::BrokenOff { .. } => write!(out, "a PSB begins within the packet")?,
            Self::LongCyc { .. } => write!(out, "CYC of more than 9 bytes")?,
        }
        write!(out, " at offset {:#x}", self.offset())
    }
}

impl std::error::Error for PacketError {}
