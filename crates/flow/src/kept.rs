//! What a step adds to a sink of runs, kept so that it is copied when the step comes again.

use crate::sink::{Sink, Step};

/// Takes one step and breaks it into parts: the runs that end in it and, last, the one that goes on, which may be empty.
pub(crate) trait Breaks: Sink + Default {
    type Part: Copy;

    /// The times that `Step::replay_at` gives it: what is before the first branch of the step, and what after it.
    const TIMES: (u64, u64) = (0, 1);

    /// Moves the parts into `parts`.
    fn parts(self, parts: &mut Vec<Self::Part>);
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    first: u32,
    /// 0: not known yet.
    count: u32,
}

/// The parts of steps by their numbers.
#[derive(Clone, Debug)]
pub(crate) struct Kept<P> {
    epoch: u32,
    places: Vec<Place>,
    parts: Vec<P>,
}

impl<P> Default for Kept<P> {
    fn default() -> Self {
        Kept {
            epoch: 0,
            places: Vec::new(),
            parts: Vec::new(),
        }
    }
}

impl<P: Copy> Kept<P> {
    /// The parts of a step: one at least.
    #[inline]
    pub fn of<B: Breaks<Part = P>>(&mut self, step: &impl Step) -> &[P] {
        let number = step.number() as usize;
        let known = match self.places.get(number) {
            Some(place) if self.epoch == step.epoch() && place.count != 0 => *place,
            _ => self.make::<B>(step),
        };
        let first = known.first as usize;
        &self.parts[first..first + known.count as usize]
    }

    #[cold]
    #[inline(never)]
    fn make<B: Breaks<Part = P>>(&mut self, step: &impl Step) -> Place {
        if self.epoch != step.epoch() {
            self.places.clear();
            self.parts.clear();
            self.epoch = step.epoch();
        }
        let number = step.number() as usize;
        if number >= self.places.len() {
            self.places.resize(number + 1, Place::default());
        }
        let first = self.parts.len();
        let mut breaks = B::default();
        step.replay_at(B::TIMES, &mut breaks);
        breaks.parts(&mut self.parts);
        let place = Place {
            first: first as u32,
            count: (self.parts.len() - first) as u32,
        };
        self.places[number] = place;
        place
    }
}
