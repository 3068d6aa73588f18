//! `ElfFile` and `demangle`: ELF files and the names in them, for Python.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rtit_image::{elf, ElfError, Symbol};

use crate::arguments::{os_text, OsText};
use crate::column::Column;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ElfFile>()?;
    module.add_function(wrap_pyfunction!(demangle, module)?)
}

/// The readable form of a Rust or C++ symbol name; other names unchanged.
#[pyfunction]
fn demangle(name: &str) -> String {
    rtit_image::demangle(name)
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
        let read = py.detach(|| {
            let (file, identity) = open(&path)?;
            Ok((elf::read(&file).map_err(Failure::Elf)?, identity))
        });
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
    fn segments(&self) -> Vec<Loadable> {
        let row = |part: &elf::Segment| {
            (
                part.offset,
                part.address,
                part.file_size,
                part.memory_size,
                part.flags,
            )
        };
        self.elf.segments.iter().map(row).collect()
    }

    /// Address of the program headers, 0 if they are not loaded, and their number.
    #[getter]
    fn program_headers(&self) -> (u64, usize) {
        self.elf.program_headers
    }

    /// Address of the dynamic section, 0 without one.
    #[getter]
    fn dynamic(&self) -> u64 {
        self.elf.dynamic
    }

    /// Whether the file is a program, also a position-independent one, and no library.
    #[getter]
    fn is_program(&self) -> bool {
        self.elf.is_program
    }

    /// Whether the file names a loader.
    #[getter]
    fn has_loader(&self) -> bool {
        self.elf.has_loader
    }

    /// Code symbols as columns (values, sizes, names, bindings), sorted by value. A binding is a
    /// byte: b"g" global, b"w" weak, b"l" local, b"p" a PLT stub. Of several at one value the best is first. Reads the
    /// file anew at each call; ImageError if it changed since it was opened.
    fn symbols(&self, py: Python<'_>) -> PyResult<(Column, Column, Vec<String>, Column)> {
        let read = py.detach(|| self.handle().symbols());
        let symbols = read.map_err(|failure| failure.raise(py, &self.path))?;
        Ok((
            symbols.iter().map(|symbol| symbol.value).collect(),
            symbols.iter().map(|symbol| symbol.size).collect(),
            symbols.iter().map(|symbol| symbol.name.clone()).collect(),
            symbols.iter().map(|symbol| symbol.binding as u8).collect(),
        ))
    }

    /// Values of the symbols with these names, of any type, in `.symtab`. ImageError as for `symbols`.
    fn symbol_values(&self, py: Python<'_>, names: Vec<String>) -> PyResult<HashMap<String, u64>> {
        let read = py.detach(|| {
            let file = self.handle().open()?;
            elf::symbol_values(&file, &names).map_err(Failure::Elf)
        });
        let values = read.map_err(|failure| failure.raise(py, &self.path))?;
        Ok(values.into_iter().collect())
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
    /// Opens the file again. An error if it changed.
    fn open(&self) -> Result<elf::ReadCache<File>, Failure> {
        let (file, identity) = open(&self.path)?;
        match identity == self.identity {
            true => Ok(file),
            false => Err(Failure::Changed),
        }
    }

    /// Returns the code symbols of the file.
    pub fn symbols(&self) -> Result<Vec<Symbol>, Failure> {
        elf::symbols(&self.open()?).map_err(Failure::Elf)
    }

    /// Opens the file again if it has at most `max_size` bytes.
    pub fn data(&self, max_size: u64) -> Option<elf::ReadCache<File>> {
        (self.identity.2 <= max_size).then(|| self.open().ok())?
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}
