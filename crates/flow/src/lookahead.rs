//! Limits of the time estimate from packets that follow.
//!
//! Only the next packet that gives the time (TSC, or MTC after a TSC with its TMA) says how long the cycles before it
//! were (section 33.8.3.4), and that nothing before it was later. So the clock looks ahead from the first CYC after
//! such a packet to the next one. Nothing is read ahead in a stream without CYCs.

use crate::stream_window::StreamWindow;

/// A position in a stream, with the state of the packet scanner there.
pub(crate) struct Here<'a> {
    pub stream: StreamWindow<'a>,
    pub offset: u64,
    /// As `Scanner::block`.
    pub block: Option<u8>,
    /// Within PSB+.
    pub in_psb_plus: bool,
    /// PacketEn is 0.
    pub off: bool,
}

/// The limits of the estimate between the last packet that gave the time and the next one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Lookahead {
    /// Offset up to which packets have been read; `u64::MAX`: one of them gives the time.
    pub until: u64,
    /// The time of that packet, an upper limit for all before it; `u64::MAX`: none was found.
    pub latest: u64,
    /// Line to the time of that packet, with the most cycles that may have passed by then.
    pub line: Option<Line>,
    /// The same with the fewest cycles.
    pub upper: Option<Line>,
}

/// A straight line from a point (time, cycles): `ticks` pass in `cycles`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Line {
    pub from: (u64, u64),
    pub ticks: u64,
    pub cycles: u64,
}

impl Default for Lookahead {
    fn default() -> Lookahead {
        Lookahead {
            until: 0,
            latest: u64::MAX,
            line: None,
            upper: None,
        }
    }
}

impl Lookahead {
    /// Whether packets at `offset` have not been read yet.
    #[inline]
    pub fn ends_before(&self, offset: u64) -> bool {
        self.until <= offset
    }

    /// The time after `cycles`. `estimate`: the time by the rate of the cycles before.
    ///
    /// The estimate is right as long as the rate does not change. The lines limit it where the rate does.
    #[inline]
    pub fn time(&self, cycles: u64, estimate: Option<u64>) -> Option<u64> {
        let lower = self.line.map(|line| line.time(cycles));
        let upper = self.upper.map_or(u64::MAX, |line| line.time(cycles));
        let time = estimate.max(lower)?;
        Some(time.min(upper).min(self.latest))
    }
}

impl Line {
    fn time(&self, cycles: u64) -> u64 {
        let passed = u128::from(cycles.saturating_sub(self.from.1));
        let ticks = passed * u128::from(self.ticks) / u128::from(self.cycles);
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        self.from.0.saturating_add(ticks)
    }
}
