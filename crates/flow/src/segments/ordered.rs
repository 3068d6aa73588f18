//! Several threads for results whose order matters.

use std::collections::VecDeque;

use super::division::Division;
use super::patience::Patience;
use super::plan::{plan, Piece};
use super::spread::spread;
use crate::counts::Counts;
use crate::decoder::{Carry, Decoder};
use crate::ledger::Ledger;
use crate::settings::Settings;
use crate::sinks::buffer_pool::BufferPoolGuard;
use crate::sinks::OrderedSink;
use crate::spaces::Spaces;
use crate::window::{Source, Window};

/// A segment should give one in so many of the bytes of results that it may.
const RESERVE: usize = 16;
/// Bytes of a segment, at least, as long as `Division::segment` is not less: its lead is to be short beside it.
const LEAST_SEGMENT: usize = 1 << 15;
/// Bytes that should be there for a round without segments.
const FIRST: usize = 1 << 18;

/// A stream followed by several threads, with the results of one.
pub struct Ordered<B, S: OrderedSink> {
    stream: B,
    spaces: Spaces,
    settings: Settings,
    division: Division,
    /// One for each thread: they keep what they learned of the code.
    workers: Vec<Worker<S>>,
    /// The state up to which results are in `ready` or were taken.
    state: State<S>,
    ledger: Ledger,
    counts: Counts,
    ready: VecDeque<S::Batch>,
    /// Rows so far.
    rows: u64,
    /// Of the last round.
    rows_per_byte: Option<f64>,
    patience: Patience,
    /// The memory of batches is used again.
    _pool: BufferPoolGuard,
}

struct Worker<S> {
    decoder: Decoder,
    sink: S,
}

struct State<S: OrderedSink> {
    carry: Carry,
    sink: S::State,
}

impl<S: OrderedSink> PartialEq for State<S> {
    fn eq(&self, other: &State<S>) -> bool {
        self.carry == other.carry && self.sink == other.sink
    }
}

/// A segment, decoded.
struct Part<S: OrderedSink> {
    begin: State<S>,
    end: State<S>,
    counts: Counts,
    ledger: Ledger,
    batches: Vec<S::Batch>,
}

/// What all segments of a round are decoded from.
struct Job<'a, S: OrderedSink> {
    window: Window<'a>,
    /// As they are at the beginning of the stream.
    spaces: &'a Spaces,
    state: &'a State<S>,
    /// Rows of a batch, and of a segment.
    limit: usize,
    most: usize,
    /// As `Division` has it.
    changes: usize,
}

impl<B: Source, S: OrderedSink> Ordered<B, S> {
    /// Whether a stream can be followed so: there are several threads, who is asked for pages is asked by one alone, turns
    /// are told in order, and points are numbered.
    pub fn divides(spaces: &Spaces, settings: &Settings, division: &Division) -> bool {
        division.threads > 1 && !spaces.need_one_thread() && !settings.points
    }

    /// `sink` is empty. What `divides` denies is done by one thread.
    pub fn new(
        stream: B,
        spaces: impl Into<Spaces>,
        settings: &Settings,
        division: Division,
        sink: S,
    ) -> Self {
        let spaces = spaces.into();
        let threads = match Self::divides(&spaces, settings, &division) {
            true => division.threads,
            false => 1,
        };
        let settings = settings.of_one_in(threads);
        let decoder = Decoder::new(spaces.clone(), stream.window(), &settings);
        Ordered {
            state: State {
                carry: decoder.carry(),
                sink: sink.state(),
            },
            ledger: decoder.ledger().clone(),
            counts: decoder.counts(),
            workers: vec![Worker { decoder, sink }],
            ready: VecDeque::new(),
            rows: 0,
            rows_per_byte: None,
            patience: Patience::new(),
            _pool: BufferPoolGuard::new(),
            stream,
            spaces,
            settings,
            division: Division {
                threads,
                ..division
            },
        }
    }

    /// Decodes one round, in batches of about `limit` rows, or to the end of the window; false if the stream has ended.
    pub fn advance(&mut self, limit: usize) -> bool {
        if self.is_finished() || self.gave_up() {
            return false;
        }
        let limit = limit.max(1);
        let window = self.stream.window();
        let position = self.state.carry.position;
        let pieces = match self.segment() {
            Some(segment) => {
                let count = self.division.pieces_in_order();
                let lead = self.patience.lead;
                let division = Division {
                    segment,
                    ..self.division
                };
                plan(window, position, &division, count, lead)
            }
            None => {
                let piece = Piece {
                    lead: None,
                    cut: position,
                    until: position.saturating_add(self.division.segment),
                };
                vec![piece]
            }
        };
        let job = Job {
            window,
            spaces: &self.spaces,
            state: &self.state,
            limit,
            // whoever wants few rows should not wait for many
            most: match self.rows_per_byte {
                None => 1,
                Some(_) => (self.division.results / S::ROW_BYTES).max(1),
            },
            changes: self.division.changes,
        };
        let threads = pieces.len().min(self.division.threads);
        while self.workers.len() < threads {
            let decoder = Decoder::new(self.spaces.clone(), Window::whole(&[]), &self.settings);
            let sink = self.workers[0].sink.fresh();
            self.workers.push(Worker { decoder, sink });
        }
        let workers = &mut self.workers[..threads];
        let parts = spread(workers, &pieces, &self.spaces.watch, |worker, piece| {
            worker.part(&job, piece)
        });
        let rows = self.rows;
        let (mut failures, mut used) = (0, 0);
        let mut end: Option<State<S>> = None;
        for (piece, mut part) in pieces.iter().zip(parts) {
            let state = end.as_ref().unwrap_or(&self.state);
            if part.begin != *state {
                failures += 1;
                part = self.workers[0].go_on_from(&job, state, piece.until);
            }
            used += 1;
            self.ledger.join(part.ledger);
            self.counts.add(&part.counts);
            let before = self.rows;
            for mut batch in part.batches {
                S::shift_rows(&mut batch, before);
                self.rows += S::rows(&batch) as u64;
                self.ready.push_back(batch);
            }
            let carry = &part.end.carry;
            let whole = carry.position >= piece.until && carry.later.is_empty();
            end = Some(part.end);
            if !whole {
                // it was too much, or the stream goes on later
                break;
            }
        }
        if let Some(end) = end {
            self.state = end;
        }
        let bytes = self.state.carry.position.saturating_sub(position);
        if bytes > 0 {
            self.rows_per_byte = Some((self.rows - rows) as f64 / bytes as f64);
        }
        if let several @ 2.. = pieces.len() {
            self.patience.learn(failures, several - used, several - 1);
        } else {
            self.patience.waited();
        }
        !self.is_finished() && !self.gave_up()
    }

    fn gave_up(&self) -> bool {
        self.workers.iter().any(|worker| worker.decoder.gave_up())
    }

    /// Bytes that the next round takes, about: a window should hold as many.
    pub fn round(&self) -> usize {
        match self.segment() {
            Some(segment) => segment * self.division.pieces_in_order(),
            None => FIRST,
        }
    }

    /// How large segments are; None: there is but one piece.
    fn segment(&self) -> Option<usize> {
        let alone = self.division.threads < 2 || self.state.carry.searching;
        if alone || !self.patience.divides() {
            return None;
        }
        let most = self.division.segment;
        let rows = (self.division.results / S::ROW_BYTES / RESERVE) as f64;
        let bytes = (rows / self.rows_per_byte?.max(1e-9)) as usize;
        Some(bytes.clamp(LEAST_SEGMENT.min(most), most))
    }

    /// The next results, if there are any before more is decoded.
    pub fn take(&mut self) -> Option<S::Batch> {
        self.ready.pop_front()
    }

    /// Spans without gaps up to where decoding has come; complete once the stream has ended.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        for worker in &self.workers {
            worker.decoder.add_counts(&mut counts);
        }
        counts
    }

    /// Offset before which the window's bytes are not needed any more.
    pub fn position(&self) -> usize {
        self.state.carry.position
    }

    pub fn is_finished(&self) -> bool {
        self.state.carry.finished
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

impl<S: OrderedSink> Worker<S> {
    fn part(&mut self, job: &Job<'_, S>, piece: &Piece) -> Part<S> {
        let Some(psb) = piece.lead else {
            return self.go_on_from(job, job.state, piece.until);
        };
        let state = job.state;
        self.decoder.limit_parts(job.changes);
        self.decoder
            .restore(&state.carry.sometime_later(psb), job.spaces);
        self.sink.resume_from(&S::later_state(&state.sink));
        self.gather(job, piece.cut, usize::MAX, |_| ());
        let known = self.sink.state();
        self.sink.resume_from(&known);
        self.go_on(job, piece.until)
    }

    /// From a known state on.
    fn go_on_from(&mut self, job: &Job<'_, S>, state: &State<S>, until: usize) -> Part<S> {
        self.decoder.limit_parts(job.changes);
        self.decoder.restore(&state.carry, job.spaces);
        self.sink.resume_from(&state.sink);
        self.go_on(job, until)
    }

    fn go_on(&mut self, job: &Job<'_, S>, until: usize) -> Part<S> {
        let begin = State {
            carry: self.decoder.begin_part(),
            sink: self.sink.state(),
        };
        let mut batches = Vec::new();
        self.gather(job, until, job.most, |batch| batches.push(batch));
        let (counts, ledger) = self.decoder.end_part();
        Part {
            begin,
            end: State {
                carry: self.decoder.carry(),
                sink: self.sink.state(),
            },
            counts,
            ledger,
            batches,
        }
    }

    /// Decodes to the first packet at or after `until`, the end of the window, or until batches have `most` rows, or the
    /// ledger is full.
    fn gather(
        &mut self,
        job: &Job<'_, S>,
        until: usize,
        most: usize,
        mut take: impl FnMut(S::Batch),
    ) {
        let (decoder, sink) = (&mut self.decoder, &mut self.sink);
        sink.set_limit(job.limit);
        let mut rows = 0;
        while rows < most {
            let before = decoder.position();
            let goes_on = decoder.decode_until(job.window, until, sink);
            let is_full = sink.is_full();
            if is_full {
                let batch = sink.take_batch();
                rows += S::rows(&batch);
                take(batch);
            }
            let position = decoder.position();
            let moves = is_full || position > before || decoder.is_paused();
            let is_there = position >= until && !decoder.tells_later();
            if !goes_on || !moves || is_there || decoder.ledger().is_full() {
                break;
            }
        }
        if !sink.is_empty() {
            take(sink.take_batch());
        }
    }
}
