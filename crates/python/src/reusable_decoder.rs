//! `ReusableDecoder`: from many short streams over the same code to edges.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rtit_flow::{
    add_saturating_at_255, afl_count_class, BitmapHash, ByteStatus, EdgeCounter, EdgeFilter,
    ErrorCause, ErrorClass, StreamWindow,
};

use crate::arguments::dict_of;
use crate::columns::append_buffer;
use crate::decoder_input::{decoder_settings_from_keywords, initial_state, DecoderCode, Start};
use crate::errors::{check_errors, lock_exclusively, PendingErrors};
use crate::image::Space;
use crate::results::{counts_dict, edges_dict, ledger_rows, LedgerRow};

/// Signals are handled after this many bytes of a stream.
const SLICE_BYTES: usize = 1 << 22;

/// A larger buffer is freed after the stream that needed it.
const MAX_KEPT_BYTES: usize = 1 << 24;

/// Memory of an instruction in the code cache, in usual code.
const BYTES_PER_INSTRUCTION: usize = 32;

#[pyclass(frozen, module = "rtit._core")]
pub struct ReusableDecoder {
    state: Mutex<ReusableDecoderState>,
}

struct ReusableDecoderState {
    decoder: rtit_flow::ReusableDecoder,
    edges: EdgeCounter,
    errors: PendingErrors,
    bytes: Vec<u8>,
}

#[pymethods]
impl ReusableDecoder {
    #[new]
    #[pyo3(signature = (space, *, spaces = None, max_instructions = 1 << 22, **keywords))]
    fn new(
        space: &Space,
        spaces: Option<&Bound<'_, PyDict>>,
        max_instructions: usize,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<ReusableDecoder> {
        let DecoderCode { spaces, errors } = DecoderCode::new(space, spaces)?;
        let mut settings = decoder_settings_from_keywords(keywords)?;
        settings.cache_limit = max_instructions.saturating_mul(BYTES_PER_INSTRUCTION);
        Ok(ReusableDecoder {
            state: Mutex::new(ReusableDecoderState {
                decoder: rtit_flow::ReusableDecoder::new(spaces, &settings),
                edges: EdgeCounter::default(),
                errors,
                bytes: Vec::new(),
            }),
        })
    }

    #[pyo3(signature = (data, bitmap = None, *, index = 0, branches = 0, add = false, classes = false, start = None))]
    #[allow(clippy::too_many_arguments)] // each is a keyword of the Python method
    fn run<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'_, PyAny>,
        bitmap: Option<&Bound<'_, PyAny>>,
        index: usize,
        branches: usize,
        add: bool,
        classes: bool,
        start: Option<Start>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut state = self.lock_state()?;
        let ReusableDecoderState {
            decoder,
            edges,
            errors,
            bytes,
        } = &mut *state;
        let (Some(&hash), Some(&filter)) =
            (BitmapHash::ALL.get(index), EdgeFilter::ALL.get(branches))
        else {
            return Err(PyValueError::new_err("unknown index or branches"));
        };
        let bitmap = bitmap.map(PyBuffer::<u8>::get).transpose()?;
        let slots = bitmap.as_ref().map(|bitmap| {
            let error = || PyTypeError::new_err("the bitmap is read-only or not contiguous");
            bitmap.as_mut_slice(py).ok_or_else(error)
        });
        let slots = slots.transpose()?;
        let data = PyBuffer::<u8>::get(data)
            .map_err(|_| PyTypeError::new_err("the stream is not bytes-like"))?;
        bytes.clear();
        append_buffer(py, &data, bytes)?;
        edges.clear();
        decoder.set_initial_state(initial_state(start)?);
        let window = StreamWindow::of_whole_stream(bytes);
        decoder.begin_stream(window);
        errors.iter().for_each(|each| each.reset_pending_error());
        while py.detach(|| {
            let until = decoder.position().saturating_add(SLICE_BYTES);
            decoder.decode_until_offset(window, until, edges)
        }) {
            check_errors(py, errors)?;
        }
        errors
            .iter()
            .try_for_each(|each| each.check_pending_error(py))?;
        if let Some(slots) = slots {
            if !add {
                slots.iter().for_each(|slot| slot.set(0));
            }
            let mask = (slots.len() as u64).wrapping_sub(1);
            edges.for_each_bitmap_slot(hash, filter, mask, |index, count| {
                if let Some(slot) = slots.get(index as usize) {
                    slot.set(add_saturating_at_255(slot.get(), count));
                }
            });
            if classes {
                let set_class = |slot: &Cell<u8>| slot.set(afl_count_class(slot.get()));
                slots.iter().for_each(set_class);
            }
        }
        let summary = decode_result_fields(py, bytes.len(), decoder);
        if bytes.capacity() > MAX_KEPT_BYTES {
            *bytes = Vec::new();
        }
        summary
    }

    fn edges<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.lock_state()?;
        let edges = py.detach(|| state.edges.sorted_edges());
        edges_dict(py, edges.into_iter())
    }

    #[pyo3(signature = (space, spaces = None, start = 0, end = u64::MAX))]
    fn invalidate(
        &self,
        space: &Space,
        spaces: Option<&Bound<'_, PyDict>>,
        start: u64,
        end: u64,
    ) -> PyResult<()> {
        let DecoderCode { spaces, errors } = DecoderCode::new(space, spaces)?;
        let mut state = self.lock_state()?;
        if !state.decoder.forget_changed_code(spaces, start, end) {
            return Err(PyValueError::new_err("the keys of the spaces have changed"));
        }
        state.errors = errors;
        Ok(())
    }

    #[pyo3(signature = (first = 0, max_rows = usize::MAX))]
    fn ledger(&self, first: usize, max_rows: usize) -> PyResult<Vec<LedgerRow>> {
        Ok(ledger_rows(
            self.lock_state()?.decoder.coverage_ledger(),
            first,
            max_rows,
        ))
    }

    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let decoder = &self.lock_state()?.decoder;
        counts_dict(py, &decoder.counts(), decoder.coverage_ledger())
    }

    #[classattr]
    #[pyo3(name = "INDEXES")]
    fn bitmap_hash_names() -> [&'static str; BitmapHash::ALL.len()] {
        BitmapHash::ALL.map(BitmapHash::name)
    }

    #[classattr]
    #[pyo3(name = "BRANCHES")]
    fn edge_filter_names() -> [&'static str; EdgeFilter::ALL.len()] {
        EdgeFilter::ALL.map(EdgeFilter::name)
    }
}

impl ReusableDecoder {
    fn lock_state(&self) -> PyResult<MutexGuard<'_, ReusableDecoderState>> {
        lock_exclusively(&self.state, "Decoder")
    }
}

/// The fields of `rtit.trace.DecodeResult`.
fn decode_result_fields<'py>(
    py: Python<'py>,
    size: usize,
    decoder: &rtit_flow::ReusableDecoder,
) -> PyResult<Bound<'py, PyDict>> {
    let (ledger, counts) = (decoder.coverage_ledger(), decoder.counts());
    let is_error = |class: &ErrorClass| {
        !matches!(
            class,
            ErrorClass::UnknownRepetitions | ErrorClass::AmbiguousThread
        )
    };
    let errors = ErrorClass::ALL.into_iter().filter(is_error);
    let errors: u64 = errors.map(|class| ledger.error_count(class)).sum();
    let last = ledger
        .closed_spans()
        .last()
        .and_then(|span| span.error.as_ref());
    dict_of!(py,
        size: size,
        exact: ledger.byte_count(ByteStatus::Exact),
        resumed: ledger.byte_count(ByteStatus::Resumed),
        lost: ledger.byte_count(ByteStatus::Lost),
        errors: errors,
        truncated: last.is_some_and(|error| error.cause == ErrorCause::CutPacket),
        instructions: counts.instructions,
        branches: counts.conditional + counts.indirect + counts.returns,
    )
}
