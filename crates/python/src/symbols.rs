//! ELF files and what addresses are called: `ElfFile`, `Functions`, `Names` and `demangle`.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rtit_image::{
    elf, inlined_calls, join_symbols, source_line, source_lines, ElfError, FrameRange, LineQuery,
    Symbol, SymbolBinding,
};
use rtit_listing::MappedRegion;

use crate::arguments::{dict_of, os_text_to_str, BoundedItems, OsText};
use crate::columns::{column_of_rows, Column};
use crate::errors::{error_about_file, PendingError, SignalInterrupt};

#[pyfunction]
pub fn demangle(name: &str) -> String {
    rtit_image::demangle(name)
}

#[pyclass(frozen, module = "rtit._core")]
pub struct ElfFile {
    file: ElfHandle,
    elf: elf::ElfHeaders,
    #[pyo3(get)]
    bits: u8,
    #[pyo3(get)]
    kind: u16,
    #[pyo3(get)]
    machine: u16,
    #[pyo3(get)]
    entry: u64,
}

/// The path of a file that was opened before, to be read again if it has not changed.
#[derive(Clone)]
struct ElfHandle {
    path: PathBuf,
    identity: FileIdentity,
}

/// Device, inode, size and time of the last change.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

#[derive(Clone)]
enum ElfReadError {
    Io(String),
    NotRegular,
    Changed,
    Elf(ElfError),
}

impl From<std::io::Error> for ElfReadError {
    fn from(error: std::io::Error) -> ElfReadError {
        ElfReadError::Io(error.to_string())
    }
}

impl ElfReadError {
    /// ImageError.
    fn into_image_error(self, py: Python<'_>, path: &Path) -> PyErr {
        let (message, offset, value) = match self {
            ElfReadError::Io(error) => (format!("cannot be read: {error}"), None, None),
            ElfReadError::NotRegular => ("not a regular file".to_owned(), None, None),
            ElfReadError::Changed => ("changed since it was opened".to_owned(), None, None),
            ElfReadError::Elf(error) => {
                (error.to_string(), Some(error.offset()), error.bad_value())
            }
        };
        error_about_file(py, "ImageError", message, path, offset, value)
    }
}

fn open_elf_file(path: &Path) -> Result<(elf::ReadCache<File>, FileIdentity), ElfReadError> {
    // Checked before the file is opened: opening a pipe would wait for a writer.
    if !path.metadata()?.is_file() {
        return Err(ElfReadError::NotRegular);
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let identity = FileIdentity {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        changed: (metadata.mtime(), metadata.mtime_nsec()),
    };
    Ok((elf::ReadCache::new(file), identity))
}

impl ElfHandle {
    /// The contents, which are read when needed.
    fn open_cached_file(&self) -> Result<elf::ReadCache<File>, ElfReadError> {
        let (file, identity) = open_elf_file(&self.path)?;
        match identity == self.identity {
            true => Ok(file),
            false => Err(ElfReadError::Changed),
        }
    }

    fn read_symbols(&self) -> Result<Vec<Symbol>, ElfReadError> {
        elf::read_elf_symbols(&self.open_cached_file()?).map_err(ElfReadError::Elf)
    }

    fn read_frames(&self) -> Result<Vec<FrameRange>, ElfReadError> {
        elf::read_elf_frames(&self.open_cached_file()?).map_err(ElfReadError::Elf)
    }
}

#[pymethods]
impl ElfFile {
    #[new]
    fn new(py: Python<'_>, path: OsText) -> PyResult<ElfFile> {
        let path = PathBuf::from(path);
        let read = py.detach(|| {
            let (file, identity) = open_elf_file(&path)?;
            Ok((
                elf::read_elf_headers(&file).map_err(ElfReadError::Elf)?,
                identity,
            ))
        });
        match read {
            Ok((elf, identity)) => Ok(ElfFile {
                file: ElfHandle { path, identity },
                bits: elf.bits,
                kind: elf.kind,
                machine: elf.machine,
                entry: elf.entry,
                elf,
            }),
            Err(error) => Err(ElfReadError::into_image_error(error, py, &path)),
        }
    }

    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let class = py.import("pathlib")?.getattr("Path")?;
        class.call1((os_text_to_str(py, self.file.path.as_os_str())?,))
    }

    #[getter]
    fn build_id<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.elf.build_id.as_ref().map(|id| PyBytes::new(py, id))
    }

    #[getter]
    fn debug_link<'py>(&self, py: Python<'py>) -> Option<(Bound<'py, PyBytes>, u32)> {
        let (name, crc) = self.elf.debug_link.as_ref()?;
        Some((PyBytes::new(py, name), *crc))
    }

    #[getter]
    fn segments(&self) -> Vec<(u64, u64, u64, u64, u32)> {
        let segments = self.elf.segments.iter();
        segments
            .map(|it| {
                (
                    it.offset,
                    it.address,
                    it.file_size,
                    it.memory_size,
                    it.flags,
                )
            })
            .collect()
    }

    #[getter]
    fn program_headers(&self) -> (u64, usize) {
        self.elf.program_headers
    }

    #[getter]
    fn dynamic(&self) -> u64 {
        self.elf.dynamic
    }

    #[getter]
    fn is_program(&self) -> bool {
        self.elf.is_program
    }

    #[getter]
    fn has_loader(&self) -> bool {
        self.elf.has_loader
    }

    fn symbols(&self, py: Python<'_>) -> PyResult<(Column, Column, Vec<String>, Column)> {
        let symbols = py
            .detach(|| self.file.read_symbols())
            .map_err(|error| error.into_image_error(py, &self.file.path))?;
        let values = column_of_rows(&symbols, |symbol| symbol.value);
        let sizes = column_of_rows(&symbols, |symbol| symbol.size);
        let bindings = column_of_rows(&symbols, |symbol| symbol.binding as u8);
        let names = symbols.into_iter().map(|symbol| symbol.name).collect();
        Ok((values, sizes, names, bindings))
    }

    fn symbol_values(&self, py: Python<'_>, names: Vec<String>) -> PyResult<HashMap<String, u64>> {
        let values = py.detach(|| {
            elf::read_elf_symbol_values(&self.file.open_cached_file()?, &names)
                .map_err(ElfReadError::Elf)
        });
        let values = values.map_err(|error| error.into_image_error(py, &self.file.path))?;
        Ok(values.into_iter().collect())
    }

    fn __repr__(&self) -> String {
        format!("ElfFile({:?})", self.file.path)
    }
}

/// Source lines of larger files are not read.
const MAX_DWARF_FILE_BYTES: u64 = 1 << 28;

/// Functions by file offset, which are read when they are needed first.
#[pyclass(frozen, module = "rtit._core")]
pub struct Functions {
    file: Arc<FunctionsOfFile>,
}

struct FunctionsOfFile {
    /// None: the functions are from `from_rows`.
    elf: Option<ElfHandle>,
    debug: Option<ElfHandle>,
    segments: Vec<elf::LoadSegment>,
    /// The file in names of functions without a symbol; empty: there are none of these.
    module: String,
    functions: OnceLock<Result<rtit_image::Functions, ElfReadError>>,
}

impl FunctionsOfFile {
    fn functions_of_file(&self) -> Result<&rtit_image::Functions, &ElfReadError> {
        let read = || {
            let mut symbols = self
                .elf
                .as_ref()
                .map_or(Ok(Vec::new()), ElfHandle::read_symbols)?;
            // Without a readable debug file there are fewer names.
            let debug = self
                .debug
                .as_ref()
                .and_then(|debug| debug.read_symbols().ok());
            if let Some(debug) = debug {
                symbols = join_symbols(symbols, debug);
            }
            let elf = self.elf.as_ref().filter(|_| !self.module.is_empty());
            let frames = elf.map_or(Ok(Vec::new()), ElfHandle::read_frames)?;
            Ok(rtit_image::Functions::new(
                &self.segments,
                symbols,
                &frames,
                &self.module,
            ))
        };
        self.functions.get_or_init(read).as_ref()
    }
}

impl rtit_listing::FunctionSource for FunctionsOfFile {
    fn read_functions(&self) -> Option<&rtit_image::Functions> {
        self.functions_of_file().ok()
    }
}

/// Starts, ends, file indices and lines; names of the files; where to continue; whether lines are missing.
type SourceLines = (
    Column,
    Column,
    Column,
    Column,
    Vec<OsText>,
    Option<u64>,
    bool,
);

#[pymethods]
impl Functions {
    #[new]
    #[pyo3(signature = (elf, debug = None, path = None))]
    fn new(elf: &ElfFile, debug: Option<&ElfFile>, path: Option<OsText>) -> Functions {
        Functions {
            file: Arc::new(FunctionsOfFile {
                elf: Some(elf.file.clone()),
                debug: debug.map(|debug| debug.file.clone()),
                segments: elf.elf.segments.clone(),
                module: path.map_or_else(String::new, |path| rtit_listing::module_name(&path.0)),
                functions: OnceLock::new(),
            }),
        }
    }

    #[staticmethod]
    fn from_rows(
        py: Python<'_>,
        start: u64,
        end: u64,
        rows: BoundedItems<(u64, u64, String)>,
    ) -> PyResult<Functions> {
        let size = end.checked_sub(start).ok_or_else(|| {
            PyValueError::new_err(format!("functions from {start:#x} to {end:#x}"))
        })?;
        let segment = elf::LoadSegment {
            offset: start,
            address: start,
            file_size: size,
            memory_size: size,
            flags: 1,
        };
        let functions = py.detach(|| {
            let symbol = |(value, size, name)| Symbol {
                value,
                size,
                name,
                binding: SymbolBinding::Global,
            };
            let mut symbols: Vec<_> = rows.0.into_iter().map(symbol).collect();
            symbols.sort_by_key(|each| each.value); // stable: of several at one address the first is the best
            rtit_image::Functions::new(std::slice::from_ref(&segment), symbols, &[], "")
        });
        Ok(Functions {
            file: Arc::new(FunctionsOfFile {
                elf: None,
                debug: None,
                segments: vec![segment],
                module: String::new(),
                functions: OnceLock::from(Ok(functions)),
            }),
        })
    }

    fn columns(&self, py: Python<'_>) -> PyResult<(Column, Column, Column, Column)> {
        let all = self.read_functions(py)?.functions_by_offset();
        Ok((
            column_of_rows(all, |each| each.offset),
            column_of_rows(all, |each| each.size),
            column_of_rows(all, |each| each.address),
            column_of_rows(all, |each| each.binding as u8),
        ))
    }

    fn name<'a>(&'a self, py: Python<'_>, index: usize) -> PyResult<&'a str> {
        let found = self.read_functions(py)?.functions_by_offset().get(index);
        let found = found.ok_or_else(|| PyIndexError::new_err(format!("no function {index}")))?;
        Ok(&found.name)
    }

    fn owned_ranges(&self, py: Python<'_>) -> PyResult<(Column, Column, Column)> {
        let owned = self.read_functions(py)?.owned_ranges();
        Ok((
            column_of_rows(owned, |each| each.start),
            column_of_rows(owned, |each| each.end),
            column_of_rows(owned, |each| u64::from(each.owner)),
        ))
    }

    fn index_at(&self, py: Python<'_>, offset: u64) -> PyResult<Option<u32>> {
        Ok(self
            .read_functions(py)?
            .function_at_offset(offset)
            .map(|(index, _)| index))
    }

    fn source_line(&self, py: Python<'_>, offset: u64) -> PyResult<Option<(OsText, u32)>> {
        let address = self.read_functions(py)?.address_of_offset(offset);
        let found = self.search_dwarf(py, |data, interrupt| {
            source_line(data, address, &|| interrupt.check_signals())
        })?;
        Ok(found.map(|(file, line)| (OsText(file), line)))
    }

    #[pyo3(signature = (windows = None, start = 0, max_rows = 1 << 19))]
    fn source_lines(
        &self,
        py: Python<'_>,
        windows: Option<BoundedItems<(u64, u64)>>,
        start: u64,
        max_rows: usize,
    ) -> PyResult<SourceLines> {
        let windows = windows.map_or_else(|| vec![(0, u64::MAX)], |windows| windows.0);
        let mut is_incomplete = false;
        let found = self.search_dwarf(py, |data, interrupt| {
            let query = LineQuery {
                windows: &windows,
                start,
                max_ranges: max_rows,
                is_cancelled: &|| interrupt.check_signals(),
            };
            let found = source_lines(data, &query)?;
            is_incomplete |= found.is_incomplete;
            (!found.ranges.is_empty()).then_some(found)
        })?;
        let found = found.unwrap_or_default();
        let rows = &found.ranges;
        Ok((
            column_of_rows(rows, |row| row.start),
            column_of_rows(rows, |row| row.end),
            column_of_rows(rows, |row| row.file),
            column_of_rows(rows, |row| row.line),
            found.files.into_iter().map(OsText).collect(),
            found.next,
            is_incomplete,
        ))
    }

    fn inlined_calls<'py>(
        &self,
        py: Python<'py>,
        windows: BoundedItems<(u64, u64)>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let found = self.search_dwarf(py, |data, interrupt| {
            let found = inlined_calls(data, &windows.0, &|| interrupt.check_signals())?;
            (!found.calls.is_empty()).then_some(found)
        })?;
        let found = found.unwrap_or_default();
        let (ranges, calls, functions) = (&found.ranges, &found.calls, &found.functions);
        dict_of!(py,
            start: column_of_rows(ranges, |row| row.start),
            end: column_of_rows(ranges, |row| row.end),
            call: column_of_rows(ranges, |row| row.call),
            parent: column_of_rows(calls, |row| row.parent),
            function: column_of_rows(calls, |row| row.function),
            call_file: column_of_rows(calls, |row| row.file),
            call_line: column_of_rows(calls, |row| row.line),
            names: functions.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(),
            first_file: column_of_rows(functions, |row| row.file),
            first_line: column_of_rows(functions, |row| row.line),
            files: found.files.into_iter().map(OsText).collect::<Vec<_>>(),
            is_incomplete: found.is_incomplete,
        )
    }

    fn address(&self, py: Python<'_>, offset: u64) -> PyResult<u64> {
        Ok(self.read_functions(py)?.address_of_offset(offset))
    }
}

impl Functions {
    /// The first result of `search`, in the debug file or in the file itself.
    fn search_dwarf<T: Send>(
        &self,
        py: Python<'_>,
        mut search: impl FnMut(&elf::ReadCache<File>, &SignalInterrupt) -> Option<T> + Send,
    ) -> PyResult<Option<T>> {
        let interrupt = SignalInterrupt::default();
        let files = self.file.debug.iter().chain(&self.file.elf);
        let found = py.detach(|| {
            files
                .filter(|file| file.identity.size <= MAX_DWARF_FILE_BYTES)
                .filter_map(|file| file.open_cached_file().ok())
                .find_map(|data| search(&data, &interrupt))
        });
        interrupt.check_pending_error(py)?;
        Ok(found)
    }

    fn read_functions(&self, py: Python<'_>) -> PyResult<&rtit_image::Functions> {
        py.detach(|| self.file.functions_of_file())
            .map_err(|error| {
                let path = self
                    .file
                    .elf
                    .as_ref()
                    .map_or(Path::new(""), |elf| &elf.path);
                error.clone().into_image_error(py, path)
            })
    }
}

/// The memory regions of a process over its life, with their functions.
#[pyclass(frozen, module = "rtit._core")]
pub struct Names {
    names: Arc<rtit_listing::ProcessNames>,
}

/// Start, end, since, until, offset, path, functions.
type RegionRow<'py> = (
    u64,
    u64,
    u64,
    u64,
    u64,
    OsText,
    Option<PyRef<'py, Functions>>,
);

#[pymethods]
impl Names {
    #[new]
    fn new(regions: BoundedItems<RegionRow<'_>>) -> Names {
        let region =
            |(start, end, since, until, offset, path, functions): RegionRow<'_>| MappedRegion {
                start,
                end,
                since,
                until,
                offset,
                module_name: rtit_listing::module_name(&path.0).into(),
                path: path.0.into(),
                functions: functions
                    .map(|each| Arc::clone(&each.file) as Arc<dyn rtit_listing::FunctionSource>),
            };
        let regions = regions.0.into_iter().map(region).collect();
        Names {
            names: Arc::new(rtit_listing::ProcessNames::new(regions)),
        }
    }
}

impl Names {
    pub fn new_name_cursor(&self) -> rtit_listing::NameCursor {
        rtit_listing::NameCursor::new(Arc::clone(&self.names))
    }
}
