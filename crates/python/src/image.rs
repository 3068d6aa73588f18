//! `Space`, `Code`, `ElfFile` and `demangle`: code bytes over time, and ELF files, for Python.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use rtit_flow::Learned;
use rtit_image::{elf, Bytes, ElfError, Pager, Symbol, View};
use rtit_memory::{gathered, Grow};

use crate::arguments::{os_text, OsText};
use crate::as_bytes::{bytes, octets, words};
use crate::heap::{bounded, room_for, unlocked, without_objects};
use crate::missing::{Asked, Missing};
use crate::raising::Raising;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Code>()?;
    module.add_class::<Space>()?;
    module.add_class::<ElfFile>()?;
    module.add_function(wrap_pyfunction!(demangle, module)?)
}

/// The readable form of a Rust or C++ symbol name; other names unchanged.
#[pyfunction]
fn demangle(name: &str) -> String {
    rtit_image::demangle(name)
}

/// Bytes of code that many spaces share without copying them.
#[pyclass(frozen, module = "rtit._core")]
pub struct Code {
    bytes: Bytes,
}

#[pymethods]
impl Code {
    #[new]
    fn new(py: Python<'_>, data: &[u8]) -> PyResult<Code> {
        bounded(py, || Ok(Code { bytes: data.into() }))
    }

    /// `size` bytes from `offset` on, shared; ValueError if there are fewer.
    fn slice(&self, offset: usize, size: usize) -> PyResult<Code> {
        let bytes = offset
            .checked_add(size)
            .and_then(|end| self.bytes.slice(offset..end));
        let length = self.bytes.len();
        let error = || PyValueError::new_err(format!("{size} bytes from {offset} of {length}"));
        Ok(Code {
            bytes: bytes.ok_or_else(error)?,
        })
    }

    fn __len__(&self) -> usize {
        self.bytes.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        bytes(py, self.bytes.as_slice())
    }
}

/// Code bytes of one process over time. Times are TSC values, addresses and sizes are in bytes.
#[pyclass(frozen, module = "rtit._core")]
pub struct Space {
    state: Mutex<State>,
    /// Its children have the same.
    learned: Learned,
}

struct State {
    space: rtit_image::Space,
    /// The view that the last `read` left, and its time.
    view: Option<(u64, View)>,
    missing: Option<Arc<Missing>>,
}

impl Space {
    /// The space as it is now; a cheap clone that later changes do not reach.
    pub fn inner(&self) -> rtit_image::Space {
        self.lock().space.clone()
    }

    /// Who is asked for pages.
    pub fn missing(&self) -> Option<Arc<Missing>> {
        self.lock().missing.clone()
    }

    fn from(space: rtit_image::Space, missing: Option<Arc<Missing>>) -> Space {
        Space {
            state: Mutex::new(State {
                space,
                view: None,
                missing,
            }),
            learned: Learned::default(),
        }
    }

    /// What streams leave of the code for those that come after them.
    pub fn learned(&self) -> Learned {
        self.learned.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut rtit_image::Space)) {
        let mut state = self.lock();
        state.view = None;
        change(&mut state.space);
    }

    /// MemoryError if there was no memory for it; then nothing has changed.
    fn bounded_change(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut rtit_image::Space),
    ) -> PyResult<()> {
        without_objects(py, || {
            self.change(change);
            Ok(())
        })
    }
}

#[derive(FromPyObject)]
enum CodeOrBytes<'py> {
    #[pyo3(transparent)]
    Code(PyRef<'py, Code>),
    #[pyo3(transparent, annotation = "bytes")]
    Bytes(Bound<'py, PyBytes>),
}

#[pymethods]
impl Space {
    #[new]
    fn new() -> Space {
        Space::from(rtit_image::Space::new(), None)
    }

    /// `code` is mapped at `address` from `time` on and replaces what it overlaps.
    fn map(&self, py: Python<'_>, time: u64, address: u64, code: CodeOrBytes<'_>) -> PyResult<()> {
        self.bounded_change(py, |space| {
            let bytes = match code {
                CodeOrBytes::Code(code) => code.bytes.clone(),
                CodeOrBytes::Bytes(data) => data.as_bytes().into(),
            };
            space.map(time, address, bytes);
        })
    }

    /// Code was written: `data` replaces the bytes at `address` from `time` on.
    fn poke(&self, py: Python<'_>, time: u64, address: u64, data: &[u8]) -> PyResult<()> {
        self.bounded_change(py, |space| space.poke(time, address, data))
    }

    /// From `time` on the `size` bytes from `address` on are not known.
    fn unmap(&self, py: Python<'_>, time: u64, address: u64, size: u64) -> PyResult<()> {
        self.bounded_change(py, |space| space.unmap(time, address, size))
    }

    /// All mappings are gone at `time` (exec).
    fn clear(&self, py: Python<'_>, time: u64) -> PyResult<()> {
        self.bounded_change(py, |space| space.clear(time))
    }

    /// The space of a process forked from this one at `time`.
    fn fork(&self, py: Python<'_>, time: u64) -> PyResult<Space> {
        bounded(py, || {
            let state = self.lock();
            let child = Space::from(state.space.fork(time), state.missing.clone());
            Ok(Space {
                learned: self.learned.clone(),
                ..child
            })
        })
    }

    /// From `time` on this is a copy of `parent` as of `time` (a process number used again).
    fn adopt(&self, py: Python<'_>, time: u64, parent: &Space) -> PyResult<()> {
        let parent = parent.inner();
        self.bounded_change(py, |space| space.adopt(time, &parent))
    }

    /// Where nothing is mapped `callable` is asked: it is given the address of a page of 4096 bytes and gives what is
    /// there, up to 4096 bytes, or None. Answers are kept, also that nothing is there. None: nobody is asked.
    fn set_missing(&self, callable: Option<Py<PyAny>>) {
        let missing = callable.map(Missing::new);
        let pager = missing
            .clone()
            .map(|missing| Arc::new(Pager::new(Box::new(Asked(missing)))));
        let mut state = self.lock();
        state.view = None;
        state.missing = missing;
        state.space.set_pager(pager);
    }

    /// The answers about pages that hold one of `size` bytes from `address` on are forgotten.
    fn forget(&self, address: u64, size: u64) {
        if let Some(pager) = self.lock().space.pager() {
            pager.forget(address, size);
        }
    }

    /// The bytes from `address` on as of `time`: at most `size`, fewer up to the first that is
    /// unknown. Raises what the callable raises that is asked for pages.
    fn read<'py>(
        &self,
        py: Python<'py>,
        time: u64,
        address: u64,
        size: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        bounded(py, || {
            // Without the lock: who is asked for a page may use this space.
            let (view, missing) = {
                let mut state = self.lock();
                let view = match state.view.take() {
                    Some((now, view)) if now <= time => view,
                    _ => state.space.view(),
                };
                (view, state.missing.clone())
            };
            let mut view = view;
            view.advance(time);
            let mut out = Vec::new();
            while let Some(at) = address.checked_add(out.len() as u64) {
                let left = size - out.len();
                if left == 0 {
                    break;
                }
                if let Some(bytes) = view.section_bytes(at) {
                    out.put_all(&bytes[..left.min(bytes.len())]);
                    continue;
                }
                let mut part = [0; 1 << 12];
                let part = part.get_mut(..left.min(1 << 12)).unwrap_or(&mut []);
                let count = view.read_into(at, part);
                if count == 0 && !view.ask(at) {
                    break;
                }
                out.put_all(&part[..count.min(part.len())]);
            }
            if let Some(missing) = missing {
                missing.check(py)?;
            }
            self.lock().view = Some((time, view));
            bytes(py, &out)
        })
    }

    /// The number of different contents that a decoder can meet.
    #[getter]
    fn epochs(&self, py: Python<'_>) -> PyResult<usize> {
        bounded(py, || Ok(self.lock().space.epochs()))
    }

    /// The number of changes recorded.
    #[getter]
    fn changes(&self) -> usize {
        self.lock().space.changes()
    }
}

/// What an ELF file says about its code. Raises rtit.errors.ImageError if the file is missing or
/// malformed.
#[pyclass(frozen, module = "rtit._core")]
pub struct ElfFile {
    path: PathBuf,
    identity: Identity,
    elf: elf::Elf,
}

/// offset, address, file size, memory size, flags
type Loadable = (u64, u64, u64, u64, u32);

/// Device, inode, size and time of change: a file with another one has changed since it was opened.
type Identity = (u64, u64, u64, i64, i64);

fn identity(metadata: &Metadata) -> Identity {
    (
        metadata.dev(),
        metadata.ino(),
        metadata.size(),
        metadata.mtime(),
        metadata.mtime_nsec(),
    )
}

#[derive(Clone)]
pub enum Failure {
    Io(String),
    NotRegular,
    Changed,
    Elf(ElfError),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::Io(error.to_string())
    }
}

impl Failure {
    pub fn raise(self, py: Python<'_>, path: &Path) -> PyErr {
        let (message, offset, value) = match self {
            Failure::Io(error) => (format!("cannot be read: {error}"), None, None),
            Failure::NotRegular => ("not a regular file".to_owned(), None, None),
            Failure::Changed => ("changed since it was opened".to_owned(), None, None),
            Failure::Elf(error) => (error.to_string(), Some(error.offset()), error.value()),
        };
        image_error(py, path, message, offset, value).unwrap_or_else(|error| error)
    }
}

fn image_error(
    py: Python<'_>,
    path: &Path,
    message: String,
    offset: Option<u64>,
    value: Option<u64>,
) -> PyResult<PyErr> {
    let keywords = PyDict::new(py);
    keywords.set_item("source", os_text(py, path.as_os_str())?)?;
    keywords.set_item("offset", offset)?;
    keywords.set_item("value", value)?;
    let class = py.import("rtit.errors")?.getattr("ImageError")?;
    Ok(PyErr::from_value(class.call((message,), Some(&keywords))?))
}

fn open(path: &Path) -> Result<(elf::ReadCache<File>, Identity), Failure> {
    // Looked at before it is opened: opening a pipe would wait for a writer.
    if !path.metadata()?.is_file() {
        return Err(Failure::NotRegular);
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    Ok((elf::ReadCache::new(file), identity(&metadata)))
}

#[pymethods]
impl ElfFile {
    #[new]
    fn new(py: Python<'_>, path: OsText) -> PyResult<ElfFile> {
        let path = PathBuf::from(path);
        let read = unlocked(py, || {
            let (file, identity) = open(&path)?;
            Ok((elf::read(&file).map_err(Failure::Elf)?, identity))
        })?;
        match read {
            Ok((elf, identity)) => Ok(ElfFile {
                path,
                identity,
                elf,
            }),
            Err(failure) => Err(Failure::raise(failure, py, &path)),
        }
    }

    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let class = py.import("pathlib")?.getattr("Path")?;
        class.call1((os_text(py, self.path.as_os_str())?,))
    }

    /// 32 or 64.
    #[getter]
    fn bits(&self) -> u8 {
        self.elf.bits
    }

    /// e_type: 2 executable, 3 shared object or position-independent executable.
    #[getter]
    fn kind(&self) -> u16 {
        self.elf.kind
    }

    /// e_machine: 3 is i386, 62 x86-64.
    #[getter]
    fn machine(&self) -> u16 {
        self.elf.machine
    }

    #[getter]
    fn entry(&self) -> u64 {
        self.elf.entry
    }

    /// The GNU build id, or None.
    #[getter]
    fn build_id<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.elf.build_id.as_ref().map(|id| PyBytes::new(py, id))
    }

    /// (name, CRC-32) of the separate debug file that .gnu_debuglink names, or None.
    #[getter]
    fn debug_link<'py>(&self, py: Python<'py>) -> Option<(Bound<'py, PyBytes>, u32)> {
        let (name, crc) = self.elf.debug_link.as_ref()?;
        Some((PyBytes::new(py, name), *crc))
    }

    /// PT_LOAD segments: (offset, address, file size, memory size, flags).
    #[getter]
    fn segments(&self, py: Python<'_>) -> PyResult<Vec<Loadable>> {
        let row = |part: &elf::Segment| {
            (
                part.offset,
                part.address,
                part.file_size,
                part.memory_size,
                part.flags,
            )
        };
        bounded(py, || {
            let rows = gathered(self.elf.segments.iter().map(row));
            room_for(py, rows.len())?;
            Ok(rows)
        })
    }

    /// Code symbols as columns (values, sizes, names, bindings), sorted by value: little-endian
    /// 64-bit values and sizes in bytes objects, a list of names, and a byte a symbol: b"g" global,
    /// b"w" weak, b"l" local, b"p" a PLT stub. Of several at one value the best is first. Reads the
    /// file anew at each call; ImageError if it changed since it was opened.
    fn symbols<'py>(&self, py: Python<'py>) -> PyResult<Columns<'py>> {
        let read = unlocked(py, || self.handle().symbols())?;
        let symbols = read.map_err(|failure| failure.raise(py, &self.path))?;
        bounded(py, || columns(py, symbols))
    }

    fn __repr__(&self) -> String {
        format!("ElfFile({:?})", self.path)
    }
}

impl ElfFile {
    pub fn handle(&self) -> Handle {
        Handle {
            path: self.path.clone(),
            identity: self.identity,
        }
    }

    pub fn loadable(&self) -> &[elf::Segment] {
        &self.elf.segments
    }
}

/// A file that was opened before, to be read again if it is still the same.
pub struct Handle {
    path: PathBuf,
    identity: Identity,
}

impl Handle {
    /// Its code symbols; an error in words if it changed or is malformed.
    pub fn symbols(&self) -> Result<Vec<Symbol>, Failure> {
        let (file, identity) = open(&self.path)?;
        if identity != self.identity {
            return Err(Failure::Changed);
        }
        elf::symbols(&file).map_err(Failure::Elf)
    }

    /// The file, of which what is asked for is read, if it is still the same and not larger than `most`.
    pub fn data(&self, most: u64) -> Option<elf::ReadCache<File>> {
        let (file, identity) = open(&self.path).ok()?;
        (identity == self.identity && identity.2 <= most).then_some(file)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

type Columns<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyList>,
    Bound<'py, PyBytes>,
);

fn columns(py: Python<'_>, symbols: Vec<Symbol>) -> PyResult<Columns<'_>> {
    room_for(py, symbols.len())?;
    Ok((
        words(py, &symbols, |symbol| symbol.value)?,
        words(py, &symbols, |symbol| symbol.size)?,
        PyList::new(py, symbols.iter().map(|symbol| symbol.name.as_str()))?,
        octets(py, &symbols, |symbol| symbol.binding as u8)?,
    ))
}
