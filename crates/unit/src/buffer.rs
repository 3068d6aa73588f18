//! Where packets gather until they are taken.

use crate::encode::Word;

/// No packet but PSB is longer.
const SLOT: usize = 16;
const FIRST_SIZE: usize = 4096;

/// Bytes up to `position`, with room kept behind it, so that a packet is stored whole and then counted.
#[derive(Clone, Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    position: usize,
}

impl Buffer {
    #[inline(always)]
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.position).unwrap_or_default()
    }

    #[inline(always)]
    pub(crate) fn put(&mut self, (word, size): Word) {
        self.slot()[..8].copy_from_slice(&word.to_le_bytes());
        self.position += size;
    }

    /// `first`, then the `size` low bytes of `word`.
    #[inline(always)]
    pub(crate) fn put_ip(&mut self, first: u8, word: u64, size: u8) {
        let slot = self.slot();
        slot[0] = first;
        slot[1..9].copy_from_slice(&word.to_le_bytes());
        self.position += 1 + usize::from(size);
    }

    pub(crate) fn put_slice(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(SLOT) {
            self.slot()[..part.len()].copy_from_slice(part);
            self.position += part.len();
        }
    }

    pub(crate) fn truncate(&mut self, position: usize) {
        self.position = self.position.min(position);
    }

    /// Forget all but the last `count` bytes; returns how many were forgotten.
    pub(crate) fn keep(&mut self, count: usize) -> usize {
        let gone = self.position.saturating_sub(count);
        self.bytes.copy_within(gone..self.position, 0);
        self.position -= gone;
        gone
    }

    /// Room for as many bytes behind the position, which `fill` counts in.
    #[inline(always)]
    pub(crate) fn room(&mut self, size: usize) -> &mut [u8] {
        while self.bytes.len() < self.position + size + SLOT {
            self.grow();
        }
        &mut self.bytes[self.position..self.position + size]
    }

    #[inline(always)]
    pub(crate) fn fill(&mut self, size: usize) {
        self.position += size;
    }

    /// The next packet needs no more memory.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.bytes.len() - self.position >= SLOT
    }

    #[inline(always)]
    fn slot(&mut self) -> &mut [u8] {
        if !self.has_room() {
            self.grow();
        }
        &mut self.bytes[self.position..self.position + SLOT]
    }

    #[cold]
    fn grow(&mut self) {
        self.bytes.resize((2 * self.bytes.len()).max(FIRST_SIZE), 0);
    }
}
