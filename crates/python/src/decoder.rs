//! `Decoder`: one short stream after the other over the same code, into edges.

use std::cell::Cell;
use std::sync::Mutex;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rtit_flow::{
    add_saturating, count_class, BitmapHash, ByteStatus, Cause, CoverageLedger, EdgeCounter,
    EdgeFilter, EdgeTotal, ErrorClass, ReusableDecoder, StreamWindow,
};

use crate::account::{counts_dict, ledger_rows, LedgerRow};
use crate::arguments::Items;
use crate::as_bytes::take_in;
use crate::column::Column;
use crate::exclusive;
use crate::image::Space;
use crate::raising::{check, Raisers};
use crate::settings::{settings_of, Given};
use crate::spaces::Coded;
use crate::start::Beginning;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Decoder>()
}

/// Ctrl-C is looked for after this many bytes of a stream.
const SLICE: usize = 1 << 22;

/// A larger buffer is given back after the stream that needed it.
const KEPT: usize = 1 << 24;

/// What an instruction of usual code takes in the code cache.
const BYTES: usize = 32;

/// Words that are kept of steps: programs under test are small, and so is what many workers hold.
const WORDS: usize = 1 << 21;

/// Follows one stream after the other through the code of `space`, and of `spaces` as `Flow` has them. What is learned
/// of the code is kept, at most 32 bytes for each of `most` instructions; `forget` says that it has changed. Settings
/// are those of `Flow`. One thread at a time: RuntimeError if another decodes with it.
#[pyclass(frozen, module = "rtit._core")]
pub struct Decoder {
    state: Mutex<State>,
}

struct State {
    persistent: ReusableDecoder,
    hits: EdgeCounter,
    raisers: Raisers,
    bytes: Vec<u8>,
}

/// Bytes; those that are exact, resumed, lost; errors; whether the last packet was cut off; instructions; branches.
type Summary = (u64, u64, u64, u64, u64, bool, u64, u64);

#[pymethods]
impl Decoder {
    #[new]
    #[pyo3(signature = (space, *, spaces = None, mtc_freq = 0, tsc_ctc = (0, 0), max_nonturbo_ratio = 0, start_time = 0,
        no_tnt = false, no_retcomp = false, cpu = None, ranges = Items::default(), guest_tsc = (0, 1 << 48),
        most = 1 << 22, walk = false))]
    #[allow(clippy::too_many_arguments)] // each is a keyword of the Python class
    fn new(
        space: &Space,
        spaces: Option<&Bound<'_, PyDict>>,
        mtc_freq: u8,
        tsc_ctc: (u32, u32),
        max_nonturbo_ratio: u8,
        start_time: u64,
        no_tnt: bool,
        no_retcomp: bool,
        cpu: Option<(u16, u16, u8)>,
        ranges: Items<(u64, u64)>,
        guest_tsc: (u64, u64),
        most: usize,
        walk: bool,
    ) -> PyResult<Decoder> {
        let Coded { spaces, raisers } = Coded::new(space, spaces)?;
        let mut settings = settings_of(Given {
            mtc_freq,
            tsc_ctc,
            max_nonturbo_ratio,
            start_time,
            no_tnt,
            no_retcomp,
            cpu,
            ranges: ranges.0,
            start: None,
            guest_tsc,
            walk,
            points: false,
            places: rtit_flow::DEFAULT_MAX_COUNTERS,
        })?;
        settings.cache_limit = most.saturating_mul(BYTES);
        if !walk {
            settings.transitions.words = WORDS;
        }
        let persistent = ReusableDecoder::new(spaces, &settings);
        let state = State {
            persistent,
            hits: EdgeCounter::default(),
            raisers,
            bytes: Vec::new(),
        };
        Ok(Decoder {
            state: Mutex::new(state),
        })
    }

    /// Decodes a stream from its first PSB on, or from its first byte if `start` says how things are there, as for
    /// `Flow`. `bitmap`, writable and of a power of two of bytes, takes the counts of its edges: INDEXES says where,
    /// BRANCHES which; on top of what it has if `add`, else instead. With `classes` they are AFL's. It is not touched
    /// if anything is raised: TypeError, ValueError, what those raise who are asked for pages.
    #[pyo3(signature = (data, bitmap = None, *, index = 0, branches = 0, add = false, classes = false, start = None))]
    #[allow(clippy::too_many_arguments)] // each is a keyword of the Python method
    fn run(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        bitmap: Option<&Bound<'_, PyAny>>,
        index: usize,
        branches: usize,
        add: bool,
        classes: bool,
        start: Option<Beginning>,
    ) -> PyResult<Summary> {
        self.working(|state| {
            let State {
                persistent,
                hits,
                raisers,
                bytes,
            } = state;
            let (Some(&index), Some(&which)) =
                (BitmapHash::ALL.get(index), EdgeFilter::ALL.get(branches))
            else {
                return Err(PyValueError::new_err("no such index or branches"));
            };
            let bitmap = bitmap.map(writable).transpose()?;
            copy(py, data, bytes)?;
            hits.clear();
            persistent.start_at(start.map(|start| start.0));
            let window = StreamWindow::whole(bytes);
            persistent.begin(window);
            raisers.iter().for_each(|each| each.begin());
            while py.detach(|| {
                let until = persistent.position().saturating_add(SLICE);
                persistent.advance(window, until, hits)
            }) {
                check(py, raisers)?;
                py.check_signals()?;
            }
            check(py, raisers)?;
            if let Some(bitmap) = &bitmap {
                let cells = cells(py, bitmap)?;
                if !add {
                    cells.iter().for_each(|cell| cell.set(0));
                }
                write(hits, cells, index, which);
                if classes {
                    cells
                        .iter()
                        .for_each(|cell| cell.set(count_class(cell.get())));
                }
            }
            let summary = summary(bytes.len() as u64, persistent);
            if bytes.capacity() > KEPT {
                *bytes = Vec::new();
            }
            Ok(summary)
        })
    }

    /// The edges of the last stream as `Flow.totals` has them: where from, where to (u64), kind (u8), count (u64).
    fn edges(&self, py: Python<'_>) -> PyResult<(Column, Column, Column, Column)> {
        self.working(|state| {
            let hits = &state.hits;
            let edges = py.detach(|| hits.edges());
            let words = |of: fn(&EdgeTotal) -> u64| edges.iter().map(of).collect::<Column>();
            let kinds = edges.iter().map(|edge| edge.kind).collect();
            Ok((
                words(|edge| edge.from),
                words(|edge| edge.to),
                kinds,
                words(|edge| edge.count),
            ))
        })
    }

    /// The code has changed from address `start` to before `end`: `space` and `spaces`, with the keys of before, have
    /// it as it is now. ValueError: other keys.
    #[pyo3(signature = (space, spaces = None, start = 0, end = u64::MAX))]
    fn forget(
        &self,
        space: &Space,
        spaces: Option<&Bound<'_, PyDict>>,
        start: u64,
        end: u64,
    ) -> PyResult<()> {
        let Coded { spaces, raisers } = Coded::new(space, spaces)?;
        self.working(|state| {
            if !state.persistent.forget(spaces, start, end) {
                return Err(PyValueError::new_err("other spaces than before"));
            }
            state.raisers = raisers;
            Ok(())
        })
    }

    /// As that of `Flow`, of the last stream.
    #[pyo3(signature = (first = 0, most = usize::MAX))]
    fn ledger(&self, first: usize, most: usize) -> PyResult<Vec<LedgerRow>> {
        self.working(|state| Ok(ledger_rows(state.persistent.ledger(), first, most)))
    }

    /// As that of `Flow`, of the last stream.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.working(|state| {
            let persistent = &state.persistent;
            counts_dict(py, &persistent.counts(), persistent.ledger())
        })
    }

    /// Names of the ways to find an edge's place.
    #[classattr]
    #[pyo3(name = "INDEXES")]
    fn indexes() -> Vec<&'static str> {
        BitmapHash::ALL.into_iter().map(BitmapHash::name).collect()
    }

    /// Names of the sets of branches that can be counted.
    #[classattr]
    #[pyo3(name = "BRANCHES")]
    fn branches() -> Vec<&'static str> {
        EdgeFilter::ALL.into_iter().map(EdgeFilter::name).collect()
    }
}

impl Decoder {
    /// Returns what `work` returns.
    fn working<T>(&self, work: impl FnOnce(&mut State) -> PyResult<T>) -> PyResult<T> {
        work(&mut *exclusive::lock(&self.state, "Decoder")?)
    }
}

/// Nobody else writes into what is decoded.
fn copy(py: Python<'_>, data: &Bound<'_, PyAny>, to: &mut Vec<u8>) -> PyResult<()> {
    let buffer = PyBuffer::<u8>::get(data)
        .map_err(|_| PyTypeError::new_err("the stream is not bytes-like"))?;
    to.clear();
    take_in(py, &buffer, to)
}

fn writable(object: &Bound<'_, PyAny>) -> PyResult<PyBuffer<u8>> {
    let buffer = PyBuffer::<u8>::get(object)
        .map_err(|_| PyTypeError::new_err("the bitmap is not a buffer of bytes"))?;
    let size = buffer.item_count();
    if !size.is_power_of_two() || size > 1 << 32 {
        return Err(PyValueError::new_err(format!(
            "the bitmap has {size} bytes, which is no power of two up to 2**32"
        )));
    }
    if buffer.readonly() || !buffer.is_c_contiguous() {
        return Err(PyTypeError::new_err(
            "the bitmap cannot be written, or is not in one piece",
        ));
    }
    Ok(buffer)
}

fn cells<'a>(py: Python<'a>, bitmap: &'a PyBuffer<u8>) -> PyResult<&'a [Cell<u8>]> {
    bitmap
        .as_mut_slice(py)
        .ok_or_else(|| PyTypeError::new_err("the bitmap cannot be written"))
}

fn write(hits: &mut EdgeCounter, cells: &[Cell<u8>], index: BitmapHash, which: EdgeFilter) {
    let mask = cells.len() as u64 - 1;
    hits.for_each_bitmap_slot(index, which, mask, |cell, count| {
        if let Some(cell) = cells.get(cell as usize) {
            cell.set(add_saturating(cell.get(), count));
        }
    });
}

fn summary(size: u64, persistent: &ReusableDecoder) -> Summary {
    let (ledger, counts): (&CoverageLedger, _) = (persistent.ledger(), persistent.counts());
    let classes = ErrorClass::ALL.into_iter();
    let remark = |class| {
        matches!(
            class,
            ErrorClass::UnknownRepetitions | ErrorClass::AmbiguousThread
        )
    };
    let errors = classes.filter(|&class| !remark(class));
    let errors = errors.map(|class| ledger.errors(class));
    let last = ledger.spans().last().and_then(|span| span.error.as_ref());
    let cut = last.is_some_and(|error| error.cause == Cause::CutPacket);
    (
        size,
        ledger.bytes(ByteStatus::Exact),
        ledger.bytes(ByteStatus::Resumed),
        ledger.bytes(ByteStatus::Lost),
        errors.sum(),
        cut,
        counts.instructions,
        counts.conditional + counts.indirect + counts.returns,
    )
}
