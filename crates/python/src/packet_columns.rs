//! `PacketScan`: the packets of a stream as columns.

use std::sync::Mutex;

use pyo3::prelude::*;
use rtit_flow::{
    empty_buffer, BufferPoolGuard, GuestTsc, PacketClock, StreamWindow, TimeSettings, WindowSource,
};
use rtit_packet::table::ROWS;
use rtit_packet::{find_psb, Columns, PacketError, Scanner};

use crate::column::Column;
use crate::exclusive;
use crate::points::columns;
use crate::stream::Stream;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Column>()?;
    module.add_class::<PacketScan>()
}

/// Ctrl-C is looked for after so many packets.
const SLICE: usize = 1 << 20;

/// kind, detail, offset, payload; offset behind the last packet; bytes behind it that are no packet; times
type Batch = (
    Column,
    Column,
    Column,
    Column,
    u64,
    Option<Bad>,
    Option<Times>,
);
/// TSC estimate, core cycles so far, core cycles in a TSC tick
type Times = [Column; 3];
/// The same, as they are gathered.
#[derive(Default)]
struct Stamps {
    time: Vec<u64>,
    cycles: Vec<u64>,
    frequency: Vec<f64>,
}
/// As the parameters of `Flow`: mtc_freq, tsc_ctc, max_nonturbo_ratio, start_time, guest_tsc.
type Clocks = (u8, (u32, u32), u8, u64, (u64, u64));
/// offset, length, reason, and whether the data ends inside a packet
type Bad = (u64, u64, String, bool);

/// Reads a stream packet by packet from its first byte on, a packet boundary outside a block; after bytes that are no
/// packet at the next PSB.
///
/// `stream`: bytes-like, or an iterable of bytes-like pieces, which are taken one at a time. RuntimeError: another
/// thread is reading with this object at the moment.
#[pyclass(frozen, module = "rtit._core")]
pub struct PacketScan {
    state: Mutex<State>,
}

struct State {
    stream: Stream,
    position: usize,
    block: Option<u8>,
    clock: Option<PacketClock>,
    _pool: BufferPoolGuard,
}

#[pymethods]
impl PacketScan {
    #[new]
    #[pyo3(signature = (stream, clocks = None, points = false))]
    fn new(
        stream: &Bound<'_, PyAny>,
        clocks: Option<Clocks>,
        points: bool,
    ) -> PyResult<PacketScan> {
        let stream = Stream::new(stream)?;
        Ok(PacketScan {
            state: Mutex::new(State {
                stream,
                position: 0,
                block: None,
                clock: clocks.map(|clocks| PacketClock::new(settings(clocks), points)),
                _pool: BufferPoolGuard::new(),
            }),
        })
    }

    /// With `clocks` (mtc_freq, tsc_ctc, max_nonturbo_ratio, start_time, guest_tsc, as `Flow` has them) the time after
    /// each packet comes behind: TSC estimate, core cycles so far (u64), core cycles in a TSC tick (f64, NaN: not
    /// known).
    ///
    /// Up to `limit` packets more as columns (kind u8, detail u8, offset u64, payload u64: see `rtit_packet::Columns`),
    /// the offset behind the last, and None or what is no packet there: (offset, length, reason, truncated). None at
    /// the end.
    fn next(&self, py: Python<'_>, limit: usize) -> PyResult<Option<Batch>> {
        self.reading(|state| state.next(py, limit))
    }

    /// With `clocks` and `points`: what timing packets told since this was asked last, as `Flow.points`; the times of
    /// packets are then numbers of points.
    fn points(&self) -> PyResult<[Column; 6]> {
        self.reading(|state| {
            let clock = state.clock.as_mut();
            Ok(columns(
                &clock.map_or_else(Vec::new, PacketClock::take_samples),
            ))
        })
    }
}

impl PacketScan {
    /// Returns what `read` returns.
    fn reading<T>(&self, read: impl FnOnce(&mut State) -> PyResult<T>) -> PyResult<T> {
        read(&mut *exclusive::lock(&self.state, "Trace")?)
    }
}

fn settings((mtc_freq, tsc_ctc, max_nonturbo_ratio, start_time, guest): Clocks) -> TimeSettings {
    TimeSettings {
        mtc_freq,
        tsc_ctc,
        max_nonturbo_ratio,
        start_time,
        guest: GuestTsc {
            offset: guest.0,
            multiplier: guest.1,
        },
    }
}

impl State {
    fn next(&mut self, py: Python<'_>, limit: usize) -> PyResult<Option<Batch>> {
        let mut columns = Columns::default();
        let mut times = self.clock.is_some().then(Stamps::default);
        let mut bad = None;
        let mut end = self.position;
        while columns.len() < limit {
            let goal = limit.min(columns.len() + SLICE);
            let error = py.detach(|| {
                let error = self.fill(&mut columns, goal);
                // in the window that has what the clock looks at
                self.stamp(&columns, &mut times);
                error
            });
            end = self.position;
            py.check_signals()?;
            match error {
                _ if columns.len() >= goal => {}
                // it may go on in the next piece
                None | Some(PacketError::Truncated { .. }) if !self.stream.window().last => {
                    let position = self.position;
                    self.stream.go_on(py, position)?;
                }
                None => break,
                Some(error) => {
                    bad = Some(self.pass_over(py, &error)?);
                    break;
                }
            }
        }
        if columns.is_empty() && bad.is_none() {
            return Ok(None);
        }
        if let (Some(clock), Some(_)) = (&mut self.clock, &bad) {
            clock.lose_packets();
        }
        Ok(Some((
            columns.kind.into(),
            columns.detail.into(),
            columns.offset.into(),
            columns.payload.into(),
            end as u64,
            bad,
            times.map(|it| [it.time.into(), it.cycles.into(), it.frequency.into()]),
        )))
    }

    /// Adds the time after each packet that has none, if there is a clock.
    fn stamp(&mut self, columns: &Columns, times: &mut Option<Stamps>) {
        let (Some(clock), Some(times)) = (&mut self.clock, times) else {
            return;
        };
        let window = self.stream.window();
        let from = times.time.len();
        let more = columns.len() - from;
        times.time.reserve(more);
        times.cycles.reserve(more);
        times.frequency.reserve(more);
        let packets = columns.kind.iter().zip(&columns.detail);
        let places = columns.payload.iter().zip(&columns.offset);
        for ((&kind, &detail), (&payload, &offset)) in packets.zip(places).skip(from) {
            if let Some(row) = ROWS.get(usize::from(kind)) {
                clock.process(row.kind, detail, payload, offset, window);
            }
            times.time.push(clock.time());
            times.cycles.push(clock.cycles());
            times.frequency.push(clock.frequency());
        }
    }

    fn fill(&mut self, columns: &mut Columns, goal: usize) -> Option<PacketError> {
        let window = self.stream.window();
        let StreamWindow { bytes, base, .. } = window;
        let mut scanner = Scanner::within(bytes, base, self.position);
        scanner.set_block(self.block);
        let room = (goal - columns.len()).min(bytes.len());
        if columns.kind.capacity() == 0 {
            *columns = Columns {
                kind: empty_buffer(room),
                detail: empty_buffer(room),
                offset: empty_buffer(room),
                payload: empty_buffer(room),
            };
        } else {
            columns.reserve(room);
        }
        let error = columns.fill(&mut scanner, goal, window.limit()).err();
        self.block = scanner.block();
        self.position = Scanner::position(&scanner);
        error
    }

    /// Goes on at the next PSB; what lies before it.
    fn pass_over(&mut self, py: Python<'_>, error: &PacketError) -> PyResult<Bad> {
        let from = self.position;
        let mut start = from + 1;
        self.block = None;
        self.position = loop {
            let window = self.stream.window();
            let (end, last) = (window.end(), window.last);
            if error.is_truncated() {
                break end;
            }
            let found = find_psb(window.bytes, start.saturating_sub(window.base))
                .map(|at| at + window.base);
            match found {
                // Only if something else follows it is known to be the last of a run.
                Some(at) if last || at + 18 <= end => break at,
                None if last => break end,
                // of what is kept the last bytes may be the beginning of a PSB
                _ => start = found.unwrap_or(start.max(end.saturating_sub(15))),
            }
            self.stream.go_on(py, start)?;
            py.check_signals()?;
        };
        let length = (self.position - from) as u64;
        Ok((from as u64, length, reason(error), error.is_truncated()))
    }
}

/// Without the offset, which is told beside it.
fn reason(error: &PacketError) -> String {
    let text = error.to_string();
    match text.rfind(" at offset ") {
        Some(at) => text.get(..at).unwrap_or(&text).to_string(),
        None => text,
    }
}
