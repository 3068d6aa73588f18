//! The input of a decoder as Python passes it: the bytes of a stream, the settings, and the code of address spaces.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyIterator};
use rtit_flow::{
    AddressSpaces, CpuModel, FilterRanges, GuestTsc, GuestViews, InitialState, ScheduledThread,
    Settings, SpaceKey, StreamWindow, TransitionLimits, WindowSource,
};

use crate::arguments::{code_mode_of_bits, AllItems, BoundedItems};
use crate::columns::append_buffer;
use crate::errors::{PendingErrors, SignalInterrupt};
use crate::image::Space;

/// Bytes that a window of chunks has at least, for one thread.
const MIN_WINDOW_BYTES: usize = 1 << 16;

/// The bytes of a stream: all of them, or a window that moves over chunks that Python yields one at a time.
pub enum DecoderStream {
    /// Kept alive, not copied.
    Shared(PyBackedBytes),
    Copied(Vec<u8>),
    Chunked(ChunkedStream),
}

pub struct ChunkedStream {
    /// Bytes that a window has at least, unless the stream ends.
    min_bytes: usize,
    /// None: there are no more.
    chunks: Option<Py<PyIterator>>,
    /// The error of the iterator, after which the stream has not ended.
    error: Option<PyErr>,
    bytes: Vec<u8>,
    base: usize,
}

impl WindowSource for DecoderStream {
    fn current_window(&self) -> StreamWindow<'_> {
        match self {
            DecoderStream::Shared(bytes) => StreamWindow::of_whole_stream(bytes),
            DecoderStream::Copied(bytes) => StreamWindow::of_whole_stream(bytes),
            DecoderStream::Chunked(stream) => StreamWindow {
                bytes: &stream.bytes,
                base: stream.base,
                last: stream.chunks.is_none(),
            },
        }
    }
}

impl DecoderStream {
    /// From bytes, another buffer of bytes, or an iterable of these.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<DecoderStream> {
        if let Ok(bytes) = object.extract::<PyBackedBytes>() {
            return Ok(DecoderStream::Shared(bytes));
        }
        if let Ok(buffer) = PyBuffer::<u8>::get(object) {
            return Ok(DecoderStream::Copied(buffer.to_vec(object.py())?));
        }
        let chunks = object.try_iter().map_err(|_| {
            PyTypeError::new_err("the stream is neither bytes-like nor an iterable of such")
        })?;
        let mut stream = DecoderStream::Chunked(ChunkedStream {
            min_bytes: MIN_WINDOW_BYTES,
            chunks: Some(chunks.unbind()),
            error: None,
            bytes: Vec::new(),
            base: 0,
        });
        stream.advance_window(object.py(), 0)?;
        Ok(stream)
    }

    /// Makes windows have at least so many bytes from `position` on, unless the stream ends.
    pub fn set_min_bytes(&mut self, py: Python<'_>, bytes: usize, position: usize) -> PyResult<()> {
        if let DecoderStream::Chunked(stream) = self {
            stream.min_bytes = bytes.max(MIN_WINDOW_BYTES);
            self.advance_window(py, position)?;
        }
        Ok(())
    }

    /// Drops the bytes before offset `position` and reads more. An error of the iterator is raised by every later call.
    pub fn advance_window(&mut self, py: Python<'_>, position: usize) -> PyResult<()> {
        let DecoderStream::Chunked(stream) = self else {
            return Ok(());
        };
        if let Some(error) = &stream.error {
            return Err(error.clone_ref(py));
        }
        let past = (position - stream.base).min(stream.bytes.len());
        stream.bytes.drain(..past);
        stream.base += past;
        while stream.bytes.len() < stream.min_bytes && stream.chunks.is_some() {
            py.check_signals()?; // an iterator may yield empty chunks for ever
            if let Err(error) = stream.read_chunk(py) {
                stream.error = Some(error.clone_ref(py));
                return Err(error);
            }
        }
        Ok(())
    }
}

impl ChunkedStream {
    fn read_chunk(&mut self, py: Python<'_>) -> PyResult<()> {
        let chunk = match &self.chunks {
            Some(chunks) => chunks.bind(py).clone().next(),
            None => None,
        };
        let Some(chunk) = chunk else {
            self.chunks = None;
            return Ok(());
        };
        let buffer = PyBuffer::<u8>::get(&chunk?)
            .map_err(|_| PyTypeError::new_err("a chunk of the stream is not bytes-like"))?;
        append_buffer(py, &buffer, &mut self.bytes)
    }
}

/// Settings from keyword arguments, as `DecoderSettings` of `_core.pyi` describes them.
pub fn decoder_settings_from_keywords(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Settings> {
    let mut settings = Settings::default();
    for (name, value) in keywords.into_iter().flatten() {
        let name: String = name.extract()?;
        match name.as_str() {
            "mtc_freq" => settings.time.mtc_freq = value.extract()?,
            "tsc_ctc" => settings.time.tsc_ctc = value.extract()?,
            "max_nonturbo_ratio" => settings.time.max_nonturbo_ratio = value.extract()?,
            "start_time" => settings.time.start_time = value.extract()?,
            "guest_tsc" => {
                let (offset, multiplier) = value.extract()?;
                settings.time.guest = GuestTsc { offset, multiplier };
            }
            "no_tnt" => settings.no_tnt = value.extract()?,
            "no_retcomp" => settings.no_retcomp = value.extract()?,
            "cpu" => {
                let cpu: Option<(u16, u16, u8)> = value.extract()?;
                settings.cpu = cpu.map(|(family, model, stepping)| CpuModel {
                    family,
                    model,
                    stepping,
                });
            }
            "ranges" => {
                let ranges = value.extract::<BoundedItems<(u64, u64)>>()?.0;
                settings.ranges = FilterRanges::new(&ranges).ok_or_else(|| {
                    PyValueError::new_err(format!("{} filter ranges, more than 4", ranges.len()))
                })?;
            }
            "start" => settings.start = initial_state(value.extract()?)?,
            "walk" if value.extract()? => settings.transitions = TransitionLimits::NONE,
            "walk" => {}
            "timing_samples" => settings.timing_samples = value.extract()?,
            "max_counters" => settings.max_counters = value.extract()?,
            _ => {
                let message = format!("{name:?} is not a setting of a decoder");
                return Err(PyTypeError::new_err(message));
            }
        }
    }
    if settings.time.mtc_freq > 15 {
        let message = format!("mtc_freq is {}, not 0 to 15", settings.time.mtc_freq);
        return Err(PyValueError::new_err(message));
    }
    if settings.max_counters == 0 {
        return Err(PyValueError::new_err("max_counters is 0, not 1 or more"));
    }
    Ok(settings)
}

/// IP of the next instruction or None, bits of the code, LastIP.
pub type Start = (Option<u64>, u32, u64);

pub fn initial_state(start: Option<Start>) -> PyResult<Option<InitialState>> {
    let state = |(ip, bits, last_ip)| {
        let mode = code_mode_of_bits(bits)?;
        Ok(InitialState { ip, mode, last_ip })
    };
    start.map(state).transpose()
}

/// The code that a scheduled thread runs (None: the decoder skips it), whether the start of its intervals is certain,
/// and the code of the process and of the kernel of a guest that it runs, where that is known.
type ThreadCode = (
    Option<Py<Space>>,
    bool,
    Option<Py<Space>>,
    Option<Py<Space>>,
);
/// Starts of intervals (TSC), the index of the thread of each, and the threads.
pub type Schedule = (PyBuffer<u64>, PyBuffer<u32>, AllItems<ThreadCode>);

/// The code of a stream, and the errors that can occur while it is read.
pub struct DecoderCode {
    pub spaces: AddressSpaces,
    pub errors: PendingErrors,
}

impl DecoderCode {
    /// `space` for everything, and those of `others` for their keys: (CR3, NR) or (CR3, NR, VMCS pointer).
    pub fn new(space: &Space, others: Option<&Bound<'_, PyDict>>) -> PyResult<DecoderCode> {
        let (token, interrupt) = SignalInterrupt::new();
        let mut code = DecoderCode {
            spaces: AddressSpaces::new(space.image_space().view_at_start()),
            errors: vec![interrupt],
        };
        code.spaces.set_cancellation_token(token);
        code.spaces.set_code_cache_pool(space.code_cache_pool());
        code.add_errors(space);
        for (key, other) in others.into_iter().flatten() {
            let without_vmcs = |_| key.extract().map(|(cr3, nr)| (cr3, nr, None));
            let (cr3, nr, vmcs): (u64, u64, Option<u64>) = key.extract().or_else(without_vmcs)?;
            if nr > 1 {
                return Err(PyValueError::new_err(format!("NR is {nr}, not 0 or 1")));
            }
            let other = other.cast::<Space>()?.get();
            let key = SpaceKey::new(cr3, nr != 0, vmcs);
            code.spaces
                .add_space(key, other.image_space().view_at_start());
            code.add_errors(other);
        }
        Ok(code)
    }

    fn add_errors(&mut self, space: &Space) {
        let callback = space.page_callback();
        self.errors
            .extend(callback.map(|callback| callback as Arc<_>));
    }

    /// Adds a schedule; `space` is that of `new`. ValueError if intervals are not in order, or have an unknown thread.
    pub fn set_schedule(&mut self, space: &Bound<'_, Space>, schedule: &Schedule) -> PyResult<()> {
        let (starts, indices, BoundedItems(threads)) = schedule;
        let mut view_of = HashMap::from([(space.as_ptr() as usize, 0)]);
        let mut view = |code: &mut DecoderCode, space: &Option<Py<Space>>| {
            let space = space.as_ref()?;
            let view = view_of.entry(space.as_ptr() as usize).or_insert_with(|| {
                code.add_errors(space.get());
                code.spaces
                    .add_view(space.get().image_space().view_at_start())
            });
            Some(*view)
        };
        for (space, is_certain, process, kernel) in threads {
            let thread = ScheduledThread {
                view: view(self, space),
                guest: GuestViews {
                    process: view(self, process),
                    kernel: view(self, kernel),
                },
                idle: *is_certain,
            };
            self.spaces.add_scheduled_thread(thread);
        }
        let starts = starts.to_vec(space.py())?;
        let indices = indices.to_vec(space.py())?;
        if starts.len() != indices.len() {
            let message = format!("{} starts of {} intervals", starts.len(), indices.len());
            return Err(PyValueError::new_err(message));
        }
        let mut last = 0;
        for (start, index) in starts.into_iter().zip(indices) {
            if start < last {
                let message = format!("an interval at {start} follows one at {last}");
                return Err(PyValueError::new_err(message));
            }
            if index as usize >= threads.len() {
                let message = format!("thread {index} of {} in an interval", threads.len());
                return Err(PyValueError::new_err(message));
            }
            last = start;
            self.spaces.add_scheduling_interval(start, index);
        }
        Ok(())
    }

    /// Adds the code of the kernel, and of guests.
    pub fn set_kernel_and_guest_code(&mut self, kernel: Option<&Space>, guest: Option<&Space>) {
        if let Some(space) = kernel {
            self.add_errors(space);
            self.spaces
                .set_kernel_view(space.image_space().view_at_start());
        }
        if let Some(space) = guest {
            self.add_errors(space);
            self.spaces
                .set_guest_view(space.image_space().view_at_start());
        }
    }
}
