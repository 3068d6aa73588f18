//! The threads, and what they found put together.

use std::mem::replace;

use super::division::{Division, MOST_EACH};
use super::part::{endless, Job, Part};
use super::patience::Patience;
use super::plan::{plan, Piece};
use super::spread::spread;
use super::sum::Sum;
use crate::counts::Counts;
use crate::decoder::{Carry, Decoder};
use crate::ledger::Ledger;
use crate::settings::{Settings, StepLimits};
use crate::sink::Wants;
use crate::spaces::Spaces;
use crate::window::{Source, Window};

/// A stream followed by several threads into a sink that adds up.
pub struct Segments<B, S> {
    stream: B,
    spaces: Spaces,
    settings: Settings,
    division: Division,
    /// One for each thread: they keep what they learned of the code.
    decoders: Vec<Decoder>,
    /// Of all up to where decoding has come.
    carry: Carry,
    ledger: Ledger,
    counts: Counts,
    sink: S,
    /// What steps counted in segments that were decoded in vain.
    vain: (Counts, S),
    /// Places that have counts of their own, at most, and how many the sink had when last all was put together.
    places: usize,
    kept: usize,
    /// Segments of the next round for each thread: fewer where a round found many places.
    each: usize,
    patience: Patience,
}

impl<B: Source, S: Sum> Segments<B, S> {
    pub fn new(
        stream: B,
        spaces: impl Into<Spaces>,
        settings: &Settings,
        division: Division,
    ) -> Self {
        let spaces = spaces.into();
        // nobody takes them of a sum
        let settings = &Settings {
            points: false,
            ..*settings
        };
        let division = Division {
            threads: match spaces.need_one_thread() {
                true => 1,
                false => division.threads.max(1),
            },
            ..division
        };
        let places = settings.places;
        // those of several threads count in vain, too
        let settings = &Settings {
            places: match division.threads {
                1 => places,
                _ => usize::MAX,
            },
            ..settings.of_one_in(division.threads)
        };
        let first = Decoder::new(spaces.clone(), stream.window(), settings);
        let mut sink = S::default();
        sink.keep(settings.places);
        Segments {
            carry: first.carry().without_time(),
            ledger: first.ledger().clone(),
            counts: first.counts(),
            decoders: vec![first],
            sink,
            vain: (Counts::default(), endless()),
            places,
            kept: 0,
            each: 1,
            patience: Patience::new(),
            stream,
            spaces,
            settings: *settings,
            division,
        }
    }

    /// Decodes one round (`Division::round`) or to the end of the window; false if the stream has ended.
    pub fn advance(&mut self) -> bool {
        if self.carry.finished || self.decoders.iter().any(Decoder::gave_up) {
            return false;
        }
        let window = self.stream.window();
        let count = match self.patience.divides() {
            true => self.division.pieces(self.each),
            false => 1,
        };
        let position = self.carry.position;
        let pieces = match (count, self.carry.searching) {
            (2.., false) => plan(window, position, &self.division, count, self.patience.lead),
            _ => vec![Piece {
                lead: None,
                cut: position,
                until: position.saturating_add(self.division.round()),
            }],
        };
        let job = Job {
            window,
            spaces: &self.spaces,
            carry: &self.carry,
            changes: self.division.changes,
        };
        let threads = pieces.len().min(self.division.threads);
        while self.decoders.len() < threads {
            let decoder = Decoder::new(self.spaces.clone(), Window::whole(&[]), &self.settings);
            self.decoders.push(decoder);
        }
        let decoders = &mut self.decoders[..threads.max(1)];
        let parts = spread(decoders, &pieces, &self.spaces.watch, |decoder, piece| {
            job.part::<S>(decoder, piece)
        });
        // of all parts at once, whatever they share
        let waited = parts.iter().map(|part| part.sink.places()).sum::<usize>();
        let (end, failures) = join_all(
            &mut Joined {
                ledger: &mut self.ledger,
                counts: &mut self.counts,
                sink: &mut self.sink,
                vain: &mut self.vain,
            },
            &mut self.decoders[0],
            &self.settings,
            &job,
            &pieces,
            parts,
        );
        self.carry = end;
        if pieces.len() > 1 {
            self.patience.learn(failures, 0, pieces.len() - 1);
        } else {
            self.patience.waited();
        }
        self.each = match waited > self.places / 2 {
            true => 1,
            false => (2 * self.each).min(MOST_EACH),
        };
        let places = self.decoders.iter().map(Decoder::places).sum::<usize>()
            + self.sink.places()
            + self.vain.1.places();
        if places > self.kept + self.places / 2 {
            self.put_together();
        }
        !self.carry.finished && !self.decoders.iter().any(Decoder::gave_up)
    }

    /// Spans without gaps up to where decoding has come; complete once the stream has ended.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        for decoder in &self.decoders {
            decoder.add_counts(&mut counts);
        }
        counts.take_off_flow(&self.vain.0);
        counts
    }

    /// What the sink has, with what steps counted.
    pub fn sum(&mut self) -> &mut S {
        self.put_together();
        &mut self.sink
    }

    /// What there is is what ran, and may have its end.
    fn put_together(&mut self) {
        if self.vain.1.places() == 0 {
            // nothing will vanish: what is beyond need not be brought in order
            self.sink.keep(self.places);
        }
        for decoder in &mut self.decoders {
            self.sink.take_steps(decoder);
        }
        self.sink.take_off(replace(&mut self.vain.1, endless()));
        self.sink.keep(self.places);
        self.sink.settle();
        self.kept = self.sink.places();
        if self.division.threads > 1 {
            self.sink.keep(usize::MAX);
        }
    }

    /// The turns (`Spaces::turn`) in which anything ran, in order; 0 is what was before the first.
    pub fn visited(&self) -> &[usize] {
        self.decoders.first().map_or(&[], Decoder::visited)
    }

    /// Offset before which the window's bytes are not needed any more.
    pub fn position(&self) -> usize {
        self.carry.position
    }

    pub fn is_finished(&self) -> bool {
        self.carry.finished
    }

    /// The window can only be left behind: more is needed before decoding goes on.
    pub fn is_starved(&self) -> bool {
        let window = self.stream.window();
        !window.last && !self.is_finished() && self.position() >= window.limit()
    }

    pub fn stream_mut(&mut self) -> &mut B {
        &mut self.stream
    }
}

/// What the parts are added to.
struct Joined<'a, S> {
    ledger: &'a mut Ledger,
    counts: &'a mut Counts,
    sink: &'a mut S,
    vain: &'a mut (Counts, S),
}

/// Adds the parts in order: the state at the end, and how many were decoded in vain.
fn join_all<S: Sum>(
    joined: &mut Joined<'_, S>,
    decoder: &mut Decoder,
    settings: &Settings,
    job: &Job<'_>,
    pieces: &[Piece],
    parts: Vec<Part<S>>,
) -> (Carry, usize) {
    let mut carry = job.carry.clone();
    let mut failures = 0;
    for (piece, mut part) in pieces.iter().zip(parts) {
        if part.begin != carry {
            failures += 1;
            if matches!(S::WANTS, Wants::Counts | Wants::Totals) {
                joined.take_back(settings, job, piece, part);
            }
            part = job.part_from(decoder, &carry, piece.until);
        }
        joined.ledger.join(part.ledger);
        joined.counts.add(&part.counts);
        joined.sink.join(part.sink);
        carry = part.end;
    }
    (carry, failures)
}

impl<S: Sum> Joined<'_, S> {
    /// A part was decoded in vain: what its decoder's steps have counted is to be taken off, which is what the walker
    /// counts there, but for what is in the part.
    fn take_back(&mut self, settings: &Settings, job: &Job<'_>, piece: &Piece, part: Part<S>) {
        let walked = Settings {
            steps: StepLimits::NONE,
            ..*settings
        };
        let mut decoder = Decoder::new(job.spaces.clone(), Window::whole(&[]), &walked);
        let again: Part<S> = job.part(&mut decoder, piece);
        self.counts.add_flow(&part.counts);
        self.sink.join(part.sink);
        self.vain.0.add_flow(&again.counts);
        self.vain.1.join(again.sink);
    }
}

#[cfg(test)]
mod tests;
