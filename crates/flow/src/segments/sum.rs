//! Sinks for which the order does not matter.

use crate::decoder::Decoder;
use crate::sink::{Counting, Sink};
use crate::totals::Totals;

/// A sink whose results are a sum, whatever the order.
pub trait Sum: Sink + Default + Send {
    /// Adds those of another part of the stream.
    fn join(&mut self, other: Self);
    /// As `Totals::keeping`, for what has an end.
    fn keep(&mut self, _places: usize) {}
    /// What is beyond the end becomes a sum.
    fn settle(&mut self) {}
    /// How much is kept of what has an end.
    fn places(&self) -> usize {
        0
    }
    /// Takes what steps have counted.
    fn take_steps(&mut self, _decoder: &mut Decoder) {}
    /// Takes off what was added before.
    fn take_off(&mut self, other: Self);
}

impl Sum for Counting {
    fn join(&mut self, _other: Counting) {}
    fn take_off(&mut self, _other: Counting) {}
}

impl Sum for Totals {
    fn join(&mut self, other: Totals) {
        Totals::join(self, other);
    }

    fn keep(&mut self, places: usize) {
        Totals::keep(self, places);
    }

    fn settle(&mut self) {
        Totals::settle(self);
    }

    fn places(&self) -> usize {
        Totals::places(self)
    }

    fn take_steps(&mut self, decoder: &mut Decoder) {
        decoder.take_totals(self);
    }

    fn take_off(&mut self, other: Totals) {
        Totals::take_off(self, other);
    }
}
