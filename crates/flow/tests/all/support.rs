//! Streams, windows and settings that several tests use.

use rtit_flow::{StreamWindow, TransitionLimits, WindowSource};
use rtit_packet::find_psb;

/// The number of examples that a property test runs: a fifth of them in everyday work.
pub fn examples(all: u32) -> u32 {
    match std::env::var_os("RTIT_ALL_EXAMPLES") {
        Some(_) => all,
        None => all / 5,
    }
}

/// PSB, MODE.Exec for 64-bit code, FUP with this IP if there is one, PSBEND.
pub fn psb_plus(ip: Option<u64>) -> Vec<u8> {
    let mut bytes = [0x02, 0x82].repeat(8);
    bytes.extend([0x99, 0x01]);
    if let Some(ip) = ip {
        bytes.push(0x7d);
        bytes.extend(&ip.to_le_bytes()[..6]);
    }
    bytes.extend([0x02, 0x23]);
    bytes
}

/// A PSB+ with this IP, then `packets`.
pub fn stream_from_ip(ip: u64, packets: &[u8]) -> Vec<u8> {
    [&psb_plus(Some(ip)), packets].concat()
}

/// Limits with which whatever recurs is fused at once.
pub fn eager_fusion() -> TransitionLimits {
    TransitionLimits {
        fusion_warm_up: 0,
        ..TransitionLimits::default()
    }
}

/// A stream in windows that grow by `size` bytes.
pub struct GrowingStream<'a> {
    whole: &'a [u8],
    size: usize,
    from: usize,
    to: usize,
}

impl<'a> GrowingStream<'a> {
    /// The first window has the whole first PSB.
    pub fn new(whole: &'a [u8], size: usize) -> GrowingStream<'a> {
        let head = find_psb(whole, 0).map_or(whole.len(), |at| at + 16);
        GrowingStream {
            whole,
            size,
            from: 0,
            to: head.saturating_add(size).min(whole.len()),
        }
    }

    /// Drops the bytes before `position` and adds the next ones.
    pub fn grow_window(&mut self, position: usize) {
        self.from = position.min(self.to);
        self.to = self.to.saturating_add(self.size).min(self.whole.len());
    }
}

impl WindowSource for GrowingStream<'_> {
    fn current_window(&self) -> StreamWindow<'_> {
        StreamWindow {
            bytes: &self.whole[self.from..self.to],
            base: self.from,
            last: self.to == self.whole.len(),
        }
    }
}
