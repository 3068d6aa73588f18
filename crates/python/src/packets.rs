//! `PacketScan`: the packets of a stream as columns.

use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rtit_flow::{take_empty_buffer, BufferPoolGuard, PacketClock, StreamWindow, WindowSource};
use rtit_packet::table::ROWS;
use rtit_packet::{find_psb, Kind, PacketColumns, PacketError, PacketScanner};

use crate::arguments::{dict_of, BoundedItems};
use crate::columns::Column;
use crate::decoder_input::{decoder_settings_from_keywords, DecoderStream};
use crate::errors::lock_exclusively;
use crate::results::samples_dict;

/// Signals are handled after so many packets.
const SLICE_PACKETS: usize = 1 << 20;

/// Bytes of a PSB, and two more that show whether the run of 02H 82H continues.
const PSB_WITH_NEXT: usize = 18;

const OVF: [u8; 2] = [0x02, 0xf3];

/// Offset, length, reason, and whether the data ends inside a packet.
type BadBytes = (u64, u64, String, bool);

/// Why there are no more packets.
enum ScanStop {
    Error(PacketError),
    /// Bytes that an erratum of the processor has corrupted.
    Corrupted {
        length: usize,
        reason: &'static str,
    },
}

/// The errata that corrupt packets.
#[derive(Clone, Copy, Default)]
struct CorruptingErrata {
    skd007: bool,
    skz84: bool,
}

/// The times after packets.
#[derive(Default)]
struct PacketTimes {
    time: Vec<u64>,
    cycles: Vec<u64>,
    frequency: Vec<f64>,
}

#[pyclass(frozen, module = "rtit._core")]
pub struct PacketScan {
    state: Mutex<PacketScanState>,
}

struct PacketScanState {
    stream: DecoderStream,
    position: usize,
    block: Option<u8>,
    clock: Option<PacketClock>,
    errata: CorruptingErrata,
    has_bytes: bool,
    _pool: BufferPoolGuard,
}

#[pymethods]
impl PacketScan {
    #[new]
    #[pyo3(signature = (stream, clocks = None, *, timing_samples = false, errata = BoundedItems::default(),
        with_bytes = false))]
    fn new(
        stream: &Bound<'_, PyAny>,
        clocks: Option<&Bound<'_, PyDict>>,
        timing_samples: bool,
        errata: BoundedItems<String>,
        with_bytes: bool,
    ) -> PyResult<PacketScan> {
        let clock = match clocks {
            Some(clocks) => {
                let time = decoder_settings_from_keywords(Some(clocks))?.time;
                Some(PacketClock::new(time, timing_samples))
            }
            None => None,
        };
        let has_erratum = |name: &str| errata.0.iter().any(|each| each == name);
        Ok(PacketScan {
            state: Mutex::new(PacketScanState {
                stream: DecoderStream::new(stream)?,
                position: 0,
                block: None,
                clock,
                errata: CorruptingErrata {
                    skd007: has_erratum("SKD007"),
                    skz84: has_erratum("SKZ84"),
                },
                has_bytes: with_bytes,
                _pool: BufferPoolGuard::new(),
            }),
        })
    }

    fn next<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.lock_state()?.next_columns(py, limit)
    }

    fn timing_samples<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut state = self.lock_state()?;
        let clock = state.clock.as_mut();
        samples_dict(
            py,
            &clock.map_or_else(Vec::new, PacketClock::take_timing_samples),
        )
    }
}

impl PacketScan {
    fn lock_state(&self) -> PyResult<MutexGuard<'_, PacketScanState>> {
        lock_exclusively(&self.state, "Trace")
    }
}

impl PacketScanState {
    fn next_columns<'py>(
        &mut self,
        py: Python<'py>,
        limit: usize,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let mut columns = PacketColumns::default();
        let mut times = self.clock.is_some().then(PacketTimes::default);
        let mut bad = None;
        let mut end = self.position;
        let mut bytes = Vec::new();
        while columns.len() < limit {
            let goal = limit.min(columns.len() + SLICE_PACKETS);
            let stop = py.detach(|| {
                let stop = self.append_packets(&mut columns, goal);
                // The clock looks ahead in the window.
                self.add_packet_times(&columns, &mut times);
                stop
            });
            if self.has_bytes {
                let window = self.stream.current_window();
                let scanned = end - window.base..self.position - window.base;
                bytes.extend_from_slice(window.bytes.get(scanned).unwrap_or_default());
            }
            end = self.position;
            py.check_signals()?;
            match stop {
                Some(ScanStop::Corrupted { length, reason }) => {
                    bad = Some((end as u64, length as u64, reason.to_owned(), false));
                    self.position += length;
                    break;
                }
                _ if columns.len() >= goal => {}
                // A packet may continue in the next chunk.
                None | Some(ScanStop::Error(PacketError::Truncated { .. }))
                    if !self.stream.current_window().last =>
                {
                    let position = self.position;
                    self.stream.advance_window(py, position)?;
                }
                None => break,
                Some(ScanStop::Error(error)) => {
                    bad = Some(self.skip_to_psb(py, &error)?);
                    break;
                }
            }
        }
        if columns.is_empty() && bad.is_none() {
            return Ok(None);
        }
        if bad.is_some() {
            self.clock
                .iter_mut()
                .for_each(PacketClock::note_missing_packets);
        }
        let times = times.map(|times| -> [Column; 3] {
            [
                times.time.into(),
                times.cycles.into(),
                times.frequency.into(),
            ]
        });
        let batch = dict_of!(py,
            kind: Column::from(columns.kind),
            detail: Column::from(columns.detail),
            offset: Column::from(columns.offset),
            payload: Column::from(columns.payload),
            end: end,
            bad: bad,
            times: times,
            raw: self.has_bytes.then(|| PyBytes::new(py, &bytes)),
        )?;
        Ok(Some(batch))
    }

    /// Adds the times of the packets that have none, if there is a clock.
    fn add_packet_times(&mut self, columns: &PacketColumns, times: &mut Option<PacketTimes>) {
        let (Some(clock), Some(times)) = (&mut self.clock, times) else {
            return;
        };
        let window = self.stream.current_window();
        let first = times.time.len();
        let count = columns.len() - first;
        times.time.reserve(count);
        times.cycles.reserve(count);
        times.frequency.reserve(count);
        for_each_packet(columns, first, |kind, detail, payload, offset| {
            clock.process_packet(kind, detail, payload, offset, window);
            times.time.push(clock.current_time());
            times.cycles.push(clock.total_cycles());
            times.frequency.push(clock.cycles_per_tsc_tick());
        });
    }

    fn append_packets(&mut self, columns: &mut PacketColumns, goal: usize) -> Option<ScanStop> {
        let (first, position, block) = (columns.len(), self.position, self.block);
        let error = self.scan_window(columns, goal);
        let Some((index, corrupted)) = self.find_corrupted_packet(columns, first) else {
            return error.map(ScanStop::Error);
        };
        // Scans again up to that packet, so that `block` is its state.
        columns.truncate(first);
        (self.position, self.block) = (position, block);
        self.scan_window(columns, index);
        Some(corrupted)
    }

    /// Finds the first packet from number `first` on that an erratum has corrupted.
    fn find_corrupted_packet(
        &self,
        columns: &PacketColumns,
        first: usize,
    ) -> Option<(usize, ScanStop)> {
        let CorruptingErrata { skd007, skz84 } = self.errata;
        if !skd007 && !skz84 {
            return None;
        }
        let window = self.stream.current_window();
        let kinds = columns.kind.get(first..)?.iter().enumerate();
        for (index, &kind) in kinds {
            let index = first + index;
            let is_suspect = match kind {
                kind if kind == Kind::Cyc as u8 => skd007,
                kind if kind == Kind::Tma as u8 => skz84,
                _ => false,
            };
            if !is_suspect {
                continue;
            }
            let offset = *columns.offset.get(index)? as usize;
            let next = columns.offset.get(index + 1);
            let length = next.map_or(self.position, |&next| next as usize) - offset;
            let byte = |at: usize| window.byte_at(offset + at).unwrap_or(0);
            if kind == Kind::Tma as u8 {
                if byte(4) != 0 || byte(6) & 0xfe != 0 {
                    let stop = ScanStop::Corrupted {
                        length: (length + 1).min(window.end() - offset),
                        reason: "a TMA with wrong values and a stray byte (erratum SKZ84)",
                    };
                    return Some((index, stop));
                }
            } else if length == 2 && [byte(1), byte(2)] == OVF {
                let stop = ScanStop::Corrupted {
                    length: 1,
                    reason: "an OVF cuts off the CYC (erratum SKD007)",
                };
                return Some((index, stop));
            }
        }
        None
    }

    fn scan_window(&mut self, columns: &mut PacketColumns, goal: usize) -> Option<PacketError> {
        let window = self.stream.current_window();
        let StreamWindow { bytes, base, .. } = window;
        let mut scanner = PacketScanner::for_window(bytes, base, self.position);
        scanner.set_block_item_size(self.block);
        let capacity = (goal - columns.len()).min(bytes.len());
        if columns.kind.capacity() == 0 {
            *columns = PacketColumns {
                kind: take_empty_buffer(capacity),
                detail: take_empty_buffer(capacity),
                offset: take_empty_buffer(capacity),
                payload: take_empty_buffer(capacity),
            };
        } else {
            columns.reserve_packets(capacity);
        }
        let error = columns
            .append_packets(&mut scanner, goal, window.packet_start_limit())
            .err();
        self.block = scanner.block_item_size();
        self.position = PacketScanner::next_packet_offset(&scanner);
        error
    }

    /// Moves to the next PSB; the bytes before it.
    fn skip_to_psb(&mut self, py: Python<'_>, error: &PacketError) -> PyResult<BadBytes> {
        let bad_start = self.position;
        let mut start = bad_start + 1;
        self.block = None;
        self.position = loop {
            let window = self.stream.current_window();
            let (end, last) = (window.end(), window.last);
            if error.is_truncated() {
                break end;
            }
            let found = find_psb(window.bytes, start.saturating_sub(window.base))
                .map(|at| at + window.base);
            match found {
                // The PSB is the end of a run of 02H 82H, which must be complete.
                Some(at) if last || at + PSB_WITH_NEXT <= end => break at,
                None if last => break end,
                // The last bytes of the window may begin a PSB.
                _ => start = found.unwrap_or(start.max(end.saturating_sub(15))),
            }
            self.stream.advance_window(py, start)?;
            py.check_signals()?;
        };
        let text = error.to_string();
        let reason = text
            .rsplit_once(" at offset ")
            .map_or(&*text, |(reason, _)| reason);
        let length = (self.position - bad_start) as u64;
        let is_truncated = error.is_truncated();
        Ok((bad_start as u64, length, reason.to_owned(), is_truncated))
    }
}

/// Calls `process` with kind, detail, payload and offset of each packet from number `first` on.
fn for_each_packet(
    columns: &PacketColumns,
    first: usize,
    mut process: impl FnMut(rtit_packet::table::Kind, u8, u64, u64),
) {
    let fields = columns.kind.iter().zip(&columns.detail);
    let positions = columns.payload.iter().zip(&columns.offset);
    for ((&kind, &detail), (&payload, &offset)) in fields.zip(positions).skip(first) {
        if let Some(row) = ROWS.get(usize::from(kind)) {
            process(row.kind, detail, payload, offset);
        }
    }
}
