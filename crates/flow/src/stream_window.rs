//! The part of a stream that is in memory. Offsets everywhere else are those of the whole stream.

/// Bytes of a stream from offset `base` on; all offsets elsewhere are of the whole stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamWindow<'a> {
    pub bytes: &'a [u8],
    pub base: usize,
    /// Nothing follows these bytes.
    pub last: bool,
}

/// So many bytes before the end of a window that is not the last nothing is read: no packet is longer, and the clock
/// looks ahead (module `lookahead`).
pub(crate) const MARGIN: usize = 1 << 12;

impl<'a> StreamWindow<'a> {
    /// A stream that is in memory as a whole.
    pub fn whole(bytes: &'a [u8]) -> StreamWindow<'a> {
        StreamWindow {
            bytes,
            base: 0,
            last: true,
        }
    }

    /// Offset after the last byte.
    pub fn end(&self) -> usize {
        self.base + self.bytes.len()
    }

    /// Offset from which on nothing can be read before more is there.
    pub fn limit(&self) -> usize {
        if self.last {
            usize::MAX
        } else {
            self.end().saturating_sub(MARGIN)
        }
    }

    pub(crate) fn byte(&self, offset: usize) -> Option<u8> {
        self.bytes.get(offset.checked_sub(self.base)?).copied()
    }
}

/// Where a stream's bytes come from.
pub trait WindowSource {
    fn window(&self) -> StreamWindow<'_>;
}

impl<B: AsRef<[u8]>> WindowSource for B {
    fn window(&self) -> StreamWindow<'_> {
        StreamWindow::whole(self.as_ref())
    }
}
