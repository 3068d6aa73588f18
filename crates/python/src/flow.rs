//! `Flow`: one PT stream and its code into what ran, as columns.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rtit_flow::{
    BlockIdSink, BlockTable, BranchSink, ErrorClass, EventKind, HashedRunSink, InstructionSink,
    ParallelConfig, RunEnd, RunSink, DEFAULT_MAX_COUNTERS,
};
use rtit_listing::ByFunction;

use crate::account::{counts_dict, ledger_rows, numbered, LedgerRow};
use crate::advance::{advance, segments, sum};
use crate::arguments::{Items, OsText};
use crate::column::Column;
use crate::decoding::Decoding;
use crate::image::Space;
use crate::in_turn::InTurn;
use crate::listing::Listing;
use crate::names::Names;
use crate::points::columns;
use crate::results::{block_columns, rows_dict, totals_dict};
use crate::settings::{settings_of, Given};
use crate::spaces::{Coded, Turns};
use crate::start::Beginning;
use crate::stream::Stream;
use crate::way::{by_way, taken, Way, Whole};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Flow>()
}

/// Follows the PT packets of one logical processor through the code of a space.
///
/// * `stream`: bytes-like, or an iterable of bytes-like pieces, which are taken one at a time as decoding comes to
///   them; read from its first PSB on.
/// * `space`: the code, over time. `spaces`: other code by (CR3, NR) or (CR3, NR, VMCS pointer), for a stream of
///   several address spaces; `space` is for what has no key, and a key with a VMCS pointer goes before one without.
///   `turns`, for a logical processor that threads share: when each begins (u64 TSC, in order of time) and whose it is
///   (u32), buffers of one length, and who there is: space or None, whether it is idle, and of a guest that it runs the
///   spaces or None of its process and its kernel. From then on the code that has no key is that of the space, with
///   None what runs is passed over. `kernel`: the code in the upper half of addresses, of all processes; `guest`: that
///   of whatever runs while NR is 1; a key goes before either.
/// * Time settings come from the machine that made the trace: `mtc_freq` is IA32_RTIT_CTL.MTCFreq; `tsc_ctc` CPUID.15H
///   (EBX, EAX); `max_nonturbo_ratio` MSR_PLATFORM_INFO[15:8]; 0 where not known, then MTCs or CYCs give no time.
///   `start_time`: any TSC value near the beginning, which completes the 56 bits of TSC packets. `guest_tsc`: offset
///   and multiplier (2^48: none) by which a guest sees the TSC, for TSC packets while NR is 1; times are the host's.
/// * `no_tnt`: recorded with DisTNT; `no_retcomp`: with DisRETC. `ranges`: the IP filter ranges, each as first and last
///   address, at most 4; empty: no filter, or not known.
/// * `cpu`: DisplayFamily, DisplayModel and stepping of the processor that wrote the stream, which decide the errata to
///   reckon with; None: not known.
/// * `start`: the state of tracing at the first byte, for a stream that is read from there on: IP of the next
///   instruction or None if tracing is off, 64, 32 or 16 for the mode, LastIP.
/// * `points`: times are numbers of points, see `points`.
/// * `walk`: take every packet by itself, which is the reference for the table of whole steps that is used otherwise
///   and gives the same.
/// * `threads`: so many decode segments between PSBs at once, where that is possible, and the results are those of one:
///   not with `turns`, `points` or a space that asks for pages, and not for `lines` and `functions`. 0: as many as the
///   machine runs at once, 8 at most.
/// * `places`: how many runs and how many edges have counts of their own in `totals`.
///
/// Results are taken by one of `next`, `runs`, `ips`, `instructions`, `branches`, `block_ids`, `lines`, `functions`,
/// `count` and `totals`, not by several. Errors of the stream are no exceptions: `ledger` has them. ValueError: a
/// setting out of range, or results taken in two ways. ConcurrentUseError: another thread is using this object.
#[pyclass(frozen, module = "rtit._core")]
pub struct Flow {
    decoding: Decoding,
}

#[pymethods]
impl Flow {
    #[new]
    #[pyo3(signature = (stream, space, *, mtc_freq = 0, tsc_ctc = (0, 0), max_nonturbo_ratio = 0, start_time = 0,
        no_tnt = false, no_retcomp = false, cpu = None, ranges = Items::default(), start = None,
        spaces = None, turns = None, kernel = None, guest = None, guest_tsc = (0, 1 << 48), walk = false,
        points = false, threads = 1, places = DEFAULT_MAX_COUNTERS))]
    #[allow(clippy::too_many_arguments)] // each is a keyword of the Python class
    fn new(
        stream: &Bound<'_, PyAny>,
        space: &Bound<'_, Space>,
        mtc_freq: u8,
        tsc_ctc: (u32, u32),
        max_nonturbo_ratio: u8,
        start_time: u64,
        no_tnt: bool,
        no_retcomp: bool,
        cpu: Option<(u16, u16, u8)>,
        ranges: Items<(u64, u64)>,
        start: Option<Beginning>,
        spaces: Option<&Bound<'_, PyDict>>,
        turns: Option<Turns>,
        kernel: Option<&Bound<'_, Space>>,
        guest: Option<&Bound<'_, Space>>,
        guest_tsc: (u64, u64),
        walk: bool,
        points: bool,
        threads: usize,
        places: usize,
    ) -> PyResult<Flow> {
        let settings = settings_of(Given {
            mtc_freq,
            tsc_ctc,
            max_nonturbo_ratio,
            start_time,
            no_tnt,
            no_retcomp,
            cpu,
            ranges: ranges.0,
            start,
            guest_tsc,
            walk,
            points,
            places,
        })?;
        let mut coded = Coded::new(space.get(), spaces)?;
        if let Some(turns) = &turns {
            coded = coded.with_turns(space, turns)?;
        }
        let coded = coded.with_shared(kernel.map(Bound::get), guest.map(Bound::get));
        let Coded { spaces, raisers } = coded;
        let parts = (Stream::new(stream)?, spaces, settings);
        Ok(Flow {
            decoding: Decoding::new(parts, raisers, ParallelConfig::for_threads(threads)),
        })
    }

    /// About `max_rows` more rows, runs and events together; None at the end.
    ///
    /// Runs, as columns: start, last, time, offset (u64), instructions (u32), end (u8, see ENDS), bits (u8: 16, 32,
    /// 64), in_tx (u8: 1 in a transaction), space (u32: the address space, 0 for what has no key and no turn, then
    /// `spaces`, those of `turns`, `kernel` and `guest` in their order; empty: all in 0). Events: event_row (number of
    /// runs begun before it), event_ip, event_value, event_time, event_offset (u64), event_kind (u8, see EVENTS). Times
    /// are TSC, lower bounds; a run's offset is that of the packet that ended it.
    fn next<'py>(&self, py: Python<'py>, max_rows: usize) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.decoding.taking(|way| {
            let flow = by_way!(way, Rows, |parts| InTurn::new(
                self.decoding.parallel_config(),
                parts,
                RunSink::default()
            ))?;
            let rows = flow.next(py, self.decoding.raisers(), max_rows)?;
            rows.map(|rows| rows_dict(py, rows)).transpose()
        })
    }

    /// About `max_runs` more runs as (start u64, instructions u32, hash u64) columns, as `TruthFile.compare` takes
    /// them; None at the end.
    fn runs(&self, py: Python<'_>, max_runs: usize) -> PyResult<Option<(Column, Column, Column)>> {
        self.decoding.taking(|way| {
            let flow = by_way!(way, Runs, |parts| InTurn::new(
                self.decoding.parallel_config(),
                parts,
                HashedRunSink::default()
            ))?;
            let taken = flow.next(py, self.decoding.raisers(), max_runs)?;
            Ok(taken.map(|taken| {
                (
                    taken.start.into(),
                    taken.instructions.into(),
                    taken.hash.into(),
                )
            }))
        })
    }

    /// About `max_instructions` more instructions as columns: IPs (u64) and lengths in bytes (u8); None at the end.
    fn ips(&self, py: Python<'_>, max_instructions: usize) -> PyResult<Option<(Column, Column)>> {
        self.decoding.taking(|way| {
            let flow = by_way!(way, Instructions, |parts| {
                InTurn::new(
                    self.decoding.parallel_config(),
                    parts,
                    InstructionSink::new(false),
                )
            })?;
            let taken = flow.next_of_all(py, self.decoding.raisers(), max_instructions)?;
            Ok(taken.map(|taken| (taken.ips.into(), taken.lengths.into())))
        })
    }

    /// About `max_instructions` more instructions as columns: IPs (u64), lengths in bytes (u8), the times of their runs
    /// as `next` has them (u64), bits and in_tx (u8, as `next`), with `points` stream offsets of the packets that told
    /// of them (u64), and space as `next`; None at the end.
    fn instructions(
        &self,
        py: Python<'_>,
        max_instructions: usize,
    ) -> PyResult<Option<[Column; 7]>> {
        self.decoding.taking(|way| {
            let flow = by_way!(way, Instructions, |parts| {
                let sink = InstructionSink::new(parts.2.timing_samples);
                InTurn::new(self.decoding.parallel_config(), parts, sink)
            })?;
            let taken = flow.next(py, self.decoding.raisers(), max_instructions)?;
            Ok(taken.map(|taken| {
                [
                    taken.ips.into(),
                    taken.lengths.into(),
                    taken.times.into(),
                    taken.bits.into(),
                    taken.in_tx.into(),
                    taken.offsets.into(),
                    taken.space.into(),
                ]
            }))
        })
    }

    /// About `max_branches` more branches as columns: where from (u64), where to (u64), `End` (u8; `Cut`: a conditional
    /// branch that was not taken), time (u64: TSC estimate, a lower bound), offset (u64) and space as `instructions`,
    /// and the space of where it went (u32; empty: that of all is where they came from); None at the end.
    fn branches(&self, py: Python<'_>, max_branches: usize) -> PyResult<Option<[Column; 7]>> {
        self.decoding.taking(|way| {
            let flow = by_way!(way, Branches, |parts| {
                let sink = BranchSink::new(parts.2.timing_samples);
                InTurn::new(self.decoding.parallel_config(), parts, sink)
            })?;
            let taken = flow.next(py, self.decoding.raisers(), max_branches)?;
            Ok(taken.map(|taken| {
                [
                    taken.from.into(),
                    taken.to.into(),
                    taken.kind.into(),
                    taken.time.into(),
                    taken.offset.into(),
                    taken.space.into(),
                    taken.target_space.into(),
                ]
            }))
        })
    }

    /// Returns about `max_blocks` more block ids (u32), in whole runs; None at the end. `blocks` has the blocks.
    fn block_ids(&self, py: Python<'_>, max_blocks: usize) -> PyResult<Option<Column>> {
        self.decoding.taking(|way| {
            if let Some(parts) = way.take() {
                let table = BlockTable::default();
                let flow = InTurn::new(
                    self.decoding.parallel_config(),
                    parts,
                    BlockIdSink::with_table(&table),
                );
                *way = Way::BlockIds(flow, table);
            }
            let Way::BlockIds(flow, _) = way else {
                return Err(taken());
            };
            let batch = flow.next_of_all(py, self.decoding.raisers(), max_blocks)?;
            Ok(batch.map(|batch| batch.ids.into()))
        })
    }

    /// Returns the blocks that `block_ids` has met, from id `first` on, as columns: IPs of the first and of the last
    /// instruction (u64), how many (u32), `End` (u8), 1 if the next block goes on with the run in memory (u8), and bits
    /// as `next` (u8). There are more while decoding goes on.
    #[pyo3(signature = (first = 0))]
    fn blocks(&self, first: usize) -> PyResult<[Column; 6]> {
        self.decoding.taking(|way| {
            let Way::BlockIds(_, table) = way else {
                return Err(taken());
            };
            Ok(block_columns(&table.since(first)))
        })
    }

    /// With `points`: what timing packets told since this was asked last, as columns: stream offset, TSC estimate, core
    /// cycles so far (u64), core cycles in a TSC tick (f64, NaN: not known), whether the packet said what time it is
    /// (u8), and the number of the span, in which every cycle was counted at one frequency (u64). They are numbered
    /// from 1 on; rows and events have the number of the last one before them as their time.
    fn points(&self) -> PyResult<[Column; 6]> {
        self.decoding.taking(|way| Ok(columns(&way.take_points())))
    }

    /// The lines of the stream are to be taken, looking so.
    fn list(&self, listing: &Listing) -> PyResult<()> {
        self.decoding.taking(|way| {
            let Way::Open(parts) = way else {
                return Err(taken());
            };
            if let Some((stream, spaces, settings)) = parts.take().map(|parts| *parts) {
                let flow =
                    rtit_flow::StreamDecoder::with_sink(stream, spaces, &settings, listing.sink());
                *way = Way::Lines(Box::new(flow));
            }
            Ok(())
        })
    }

    /// More lines after `list`: their text, and how many. About `max_bytes` bytes, at most `max_lines` lines, none
    /// later than `until` (TSC); None at the end.
    #[pyo3(signature = (max_bytes, max_lines = u64::MAX, until = u64::MAX))]
    fn lines<'py>(
        &self,
        py: Python<'py>,
        max_bytes: usize,
        max_lines: u64,
        until: u64,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
        self.decoding.taking(|way| {
            let Some(flow) = way.lines()? else {
                return Ok(None);
            };
            flow.sink_mut().set_limits(max_bytes, max_lines);
            advance(py, self.decoding.raisers(), flow)?;
            let part = py.detach(|| flow.sink_mut().take_text(max_bytes, max_lines, until));
            if part.lines == 0 && flow.sink_mut().next_time().is_none() {
                way.end(Whole::Lines);
                return Ok(None);
            }
            Ok(Some((PyBytes::new(py, &part.text), part.lines)))
        })
    }

    /// The TSC estimate of the next line after `list`; None at the end.
    fn next_time(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.decoding.taking(|way| {
            let Some(flow) = way.lines()? else {
                return Ok(None);
            };
            if flow.sink_mut().next_time().is_none() {
                flow.sink_mut().set_limits(1, 1);
                advance(py, self.decoding.raisers(), flow)?;
            }
            let next = flow.sink_mut().next_time();
            if next.is_none() {
                way.end(Whole::Lines);
            }
            Ok(next)
        })
    }

    /// Decodes to the end and counts instructions by function: rows (function, path of its file, instructions), ""
    /// where there is none. `names` has the names of the stream's process, `others` those of its other spaces, in their
    /// order.
    #[pyo3(signature = (names, others = Items::default()))]
    fn functions(
        &self,
        py: Python<'_>,
        names: &Names,
        others: Items<Py<Names>>,
    ) -> PyResult<Vec<(String, OsText, u64)>> {
        let others = others.0.iter().map(|names| names.get().cursor());
        let names = std::iter::once(names.cursor()).chain(others).collect();
        self.decoding.taking(|way| {
            let flow = by_way!(way, Functions, |parts| {
                let (stream, spaces, settings) = parts;
                let sink = ByFunction::new(names);
                Box::new(rtit_flow::StreamDecoder::with_sink(
                    stream, spaces, &settings, sink,
                ))
            })?;
            advance(py, self.decoding.raisers(), flow)?;
            let found = py.detach(|| flow.sink_mut().finish());
            way.end(Whole::Functions);
            let rows = found.into_iter();
            Ok(rows
                .map(|((name, path), count)| (name, OsText(path), count))
                .collect())
        })
    }

    /// Decodes to the end without keeping anything but the counts and the ledger, which it returns as `counts` does.
    fn count<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.decoding.taking(|way| {
            if let Some(parts) = way.take() {
                *way = Way::Count(segments(py, self.decoding.parallel_config(), parts)?);
            }
            if let Way::Ended(Whole::Count, ended) = way {
                return counts_dict(py, &ended.counts, &ended.ledger);
            }
            let Way::Count(all) = way else {
                return Err(taken());
            };
            sum(py, self.decoding.raisers(), all)?;
            let counts = counts_dict(py, &all.counts(), all.ledger());
            way.end(Whole::Count);
            counts
        })
    }

    /// Decodes to the end and adds up what ran, whatever the order. Columns are sorted.
    ///
    /// Runs, instructions one after the other in memory: run_start (u64), run_instructions (u32), run_count (u64). Runs
    /// overlap: an instruction ran as often as all runs that hold it. Edges, transfers from an instruction to where it
    /// went: edge_source, edge_target (u64), edge_kind (u8: `End`; `Cut` is a conditional branch that was not taken),
    /// edge_count (u64). Of more runs or edges than `places` the first in their order are there; how often others ran
    /// or were taken: uncounted_runs, uncounted_edges (by kind).
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.decoding.taking(|way| {
            let all = by_way!(way, Totals, |parts| segments(
                py,
                self.decoding.parallel_config(),
                parts
            )?)?;
            sum(py, self.decoding.raisers(), all)?;
            let totals = py.detach(|| std::mem::take(all.result()));
            // what was learned of the code is let go of before there are columns
            way.end(Whole::Totals);
            totals_dict(py, totals)
        })
    }

    /// The account of the stream as far as it is decoded and settled: rows (from, to, trust, class, text, offset,
    /// value) without gaps. trust is "exact", "resumed" or "lost"; the last four say why it is lost, else None. All, or
    /// at most `most` from number `first` on.
    #[pyo3(signature = (first = 0, most = usize::MAX))]
    fn ledger(&self, first: usize, most: usize) -> PyResult<Vec<LedgerRow>> {
        self.decoding
            .account(|_, ledger| ledger_rows(ledger, first, most))
            .map(Option::unwrap_or_default)
    }

    /// Totals so far: packets by name, errors by class, bytes by trust, errata by name (how often the stream was read
    /// as one asks), and instructions, conditional, indirect, returns, compressed_returns, asynchronous, cycles,
    /// measured (cycles and the TSC ticks in which they were counted: their ratio is that of core clock and TSC),
    /// inactive (TSC ticks in which nothing was traced).
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.decoding
            .account(|counts, ledger| counts_dict(py, counts, ledger))?
            .unwrap_or_else(|| Ok(PyDict::new(py)))
    }

    /// How many of `turns` have begun where decoding has come to. Results that `next` and `runs` give at once are of
    /// one turn, and this number, asked after they were taken, says which: 0 is before the first.
    #[getter]
    fn turn(&self) -> PyResult<usize> {
        Ok(self.decoding.lock()?.turn())
    }

    /// After `count`: the turns in which anything ran, numbered as `turn` does, in order.
    #[getter]
    fn visited(&self) -> PyResult<Vec<usize>> {
        Ok(self.decoding.lock()?.visited().to_vec())
    }

    /// Names of the numbers in the column `end`.
    #[classattr]
    #[pyo3(name = "ENDS")]
    fn ends(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        numbered(py, RunEnd::ALL.map(|end| (end as u8, end.name())))
    }

    /// Names of the numbers in the column `event_kind`.
    #[classattr]
    #[pyo3(name = "EVENTS")]
    fn events(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        numbered(py, EventKind::ALL.map(|kind| (kind as u8, kind.name())))
    }

    /// Names of the numbers that an event of kind "error" has as its value.
    #[classattr]
    #[pyo3(name = "ERRORS")]
    fn errors(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        numbered(py, ErrorClass::ALL.map(|class| (class as u8, class.name())))
    }
}

impl Flow {
    pub(crate) fn decoding(&self) -> &Decoding {
        &self.decoding
    }
}
