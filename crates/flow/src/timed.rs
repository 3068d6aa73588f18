//! Instructions with their times, modes and transactions.

use crate::event::Event;
use crate::sink::{End, Sequence, Sink, Wants, MAX_RUN};

/// The sink that lists every instruction: its IP, its length and when its run began, as `Run` has it.
#[derive(Clone, Debug, Default)]
pub struct TimedInstructions {
    pub ips: Vec<u64>,
    pub lengths: Vec<u8>,
    pub times: Vec<u64>,
    /// The mode of the code: 16, 32 or 64.
    pub bits: Vec<u8>,
    /// 1: in a transaction, as far as MODE.TSX has told.
    pub in_tx: Vec<u8>,
    /// Decoding pauses when this many wait.
    pub limit: usize,
    /// Of the packet that told of it, if `places`.
    pub offsets: Vec<u64>,
    places: bool,
    offset: u64,
    now_in_tx: bool,
    /// The time of the open run, and how many instructions it has.
    open: (u64, u32),
}

impl TimedInstructions {
    /// `places`: offsets are wanted.
    pub fn new(places: bool) -> TimedInstructions {
        TimedInstructions {
            places,
            ..TimedInstructions::default()
        }
    }
}

impl Sink for TimedInstructions {
    const WANTS: Wants = Wants::Order;

    fn packet(&mut self, offset: u64) {
        self.offset = offset;
    }

    fn append(&mut self, sequence: &Sequence<'_>, time: u64) {
        let mut ip = sequence.start;
        for &length in sequence.lengths {
            self.ips.push(ip);
            ip = ip.wrapping_add(u64::from(length));
        }
        self.lengths.extend_from_slice(sequence.lengths);
        let (began, before) = self.open;
        let began = if before == 0 { time } else { began };
        self.times.resize(self.ips.len(), began);
        if self.places {
            self.offsets.resize(self.ips.len(), self.offset);
        }
        self.bits.resize(self.ips.len(), sequence.mode.bits() as u8);
        self.in_tx.resize(self.ips.len(), self.now_in_tx.into());
        let count = before + sequence.lengths.len() as u32;
        self.open = if count >= MAX_RUN {
            (0, 0)
        } else {
            (began, count)
        };
    }

    fn close(&mut self, _end: End, _offset: u64) {
        self.open = (0, 0);
    }

    fn event(&mut self, event: &Event) {
        if let Some(in_tx) = event.in_tx().filter(|&in_tx| in_tx != self.now_in_tx) {
            // as rows have it, a run ends here
            self.open = (0, 0);
            self.now_in_tx = in_tx;
        }
    }

    fn room(&self, _rows: usize, instructions: usize) -> usize {
        self.limit
            .saturating_sub(self.ips.len())
            .div_ceil(instructions)
    }

    fn is_full(&self) -> bool {
        self.ips.len() >= self.limit
    }
}
