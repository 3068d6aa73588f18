//! `Functions` and `Names`: what addresses are called, for Python.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use rtit_image::{
    elf, join_symbols, source_line, source_lines, Binding, Function, LineQuery, LineRange,
    OwnedRange, Symbol,
};
use rtit_listing::{FunctionSource, Region};

use crate::arguments::{Items, OsText};
use crate::column::Column;
use crate::elf_file::{ElfFile, Failure, Handle};

use crate::interrupt::Interrupt;
use crate::raising::Raising;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Functions>()?;
    module.add_class::<Names>()
}

/// Larger files are not searched for lines of source.
const LARGEST: u64 = 1 << 28;

/// The functions of an ELF file by file offset, read when they are first asked for.
///
/// `debug` is another file with symbols of the same program. rtit.errors.ImageError, at the first question: the file
/// is malformed or changed since it was opened.
#[pyclass(frozen, module = "rtit._core")]
pub struct Functions {
    file: Arc<Lazy>,
}

struct Lazy {
    /// None: what `listed` was told is all.
    elf: Option<Handle>,
    segments: Vec<elf::Segment>,
    debug: Option<Handle>,
    read: OnceLock<Result<rtit_image::Functions, Failure>>,
}

impl Lazy {
    fn get(&self) -> Result<&rtit_image::Functions, &Failure> {
        let read = || {
            let mut symbols = self.elf.as_ref().map_or(Ok(Vec::new()), Handle::symbols)?;
            // what cannot be read there costs names, not the file
            let more = self.debug.as_ref().and_then(|debug| debug.symbols().ok());
            if let Some(more) = more {
                symbols = join_symbols(symbols, more);
            }
            Ok(rtit_image::Functions::new(&self.segments, symbols))
        };
        self.read.get_or_init(read).as_ref()
    }
}

impl FunctionSource for Lazy {
    fn functions(&self) -> Option<&rtit_image::Functions> {
        self.get().ok()
    }
}

type Lines = (
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
    #[pyo3(signature = (elf, debug = None))]
    fn new(elf: &ElfFile, debug: Option<&ElfFile>) -> Functions {
        Functions {
            file: Arc::new(Lazy {
                elf: Some(elf.handle()),
                segments: elf.loadable().to_vec(),
                debug: debug.map(ElfFile::handle),
                read: OnceLock::new(),
            }),
        }
    }

    /// Those of a list instead of a file: (address, size, name), a size of 0 reaches to the next one. They lie in
    /// memory from `start` to before `end`, and offsets are addresses. ValueError: `end` is before `start`.
    #[staticmethod]
    fn listed(
        py: Python<'_>,
        start: u64,
        end: u64,
        rows: Items<(u64, u64, String)>,
    ) -> PyResult<Functions> {
        let size = end.checked_sub(start).ok_or_else(|| {
            PyValueError::new_err(format!("functions from {start:#x} to {end:#x}"))
        })?;
        let segment = elf::Segment {
            offset: start,
            address: start,
            file_size: size,
            memory_size: size,
            flags: 1,
        };
        let found = py.detach(|| {
            let mut symbols: Vec<_> = rows.0.into_iter().map(listed).collect();
            symbols.sort_by_key(|each| each.value); // stable: of several at one address the first is the best
            rtit_image::Functions::new(std::slice::from_ref(&segment), symbols)
        });
        Ok(Functions {
            file: Arc::new(Lazy {
                elf: None,
                segments: vec![segment],
                debug: None,
                read: OnceLock::from(Ok(found)),
            }),
        })
    }

    /// All functions as columns (offsets, sizes, addresses, bindings), in order of offset, the best name first where
    /// several share one. A binding is a byte as in `ElfFile.symbols`. `name` has their names.
    fn columns(&self, py: Python<'_>) -> PyResult<(Column, Column, Column, Column)> {
        let all = self.read(py)?.all();
        let column = |value: fn(&Function) -> u64| all.iter().map(value).collect();
        Ok((
            column(|each| each.offset),
            column(|each| each.size),
            column(|each| each.address),
            all.iter().map(|each| each.binding as u8).collect(),
        ))
    }

    /// The name of one of `columns`. IndexError: there are not so many.
    fn name<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyString>> {
        let found = self.read(py)?.all().get(index);
        let found = found.ok_or_else(|| PyIndexError::new_err(format!("no function {index}")))?;
        Ok(PyString::new(py, &found.name))
    }

    /// Disjoint ranges of file offsets with the function that owns each, sorted: columns (starts, ends, indices).
    fn owned(&self, py: Python<'_>) -> PyResult<(Column, Column, Column)> {
        let owned = self.read(py)?.owned();
        let column = |value: fn(&OwnedRange) -> u64| owned.iter().map(value).collect();
        Ok((
            column(|each| each.start),
            column(|each| each.end),
            column(|each| each.owner.into()),
        ))
    }

    /// The index of the function that owns a file offset.
    fn at(&self, py: Python<'_>, offset: u64) -> PyResult<Option<u32>> {
        Ok(self.read(py)?.at(offset).map(|(index, _)| index))
    }

    /// (source file, line) of the instruction at a file offset, by the DWARF of the debug file or of the file; None if
    /// neither says it, or is larger than 256 MB.
    fn line(&self, py: Python<'_>, offset: u64) -> PyResult<Option<(OsText, u32)>> {
        let address = self.read(py)?.address(offset);
        let found = self.asked(py, |data, interrupt| {
            source_line(data, address, &|| interrupt.gives_up())
        })?;
        Ok(found.map(|(file, line)| (OsText(file), line)))
    }

    /// All lines of source that `line` knows, or those of `windows`, of addresses from the first up to the second of
    /// each: stretches of the code in order, as columns (starts and ends of 64 bits, files and lines of 32), and the
    /// names of the files that the third column counts. Addresses are those of the ELF file. No more than `most` are
    /// given, nothing that begins before `start`: then comes where the first begins that is not given, None if that is
    /// all; and whether the file tells of more than it may.
    #[pyo3(signature = (windows = None, start = 0, most = 1 << 19))]
    fn lines(
        &self,
        py: Python<'_>,
        windows: Option<Items<(u64, u64)>>,
        start: u64,
        most: usize,
    ) -> PyResult<Lines> {
        let windows = windows.map_or_else(|| vec![(0, u64::MAX)], |windows| windows.0);
        let mut is_incomplete = false;
        let found = self.asked(py, |data, interrupt| {
            let query = LineQuery {
                windows: &windows,
                start,
                max_ranges: most,
                is_cancelled: &|| interrupt.gives_up(),
            };
            let found = source_lines(data, &query)?;
            is_incomplete |= found.is_incomplete;
            (!found.ranges.is_empty()).then_some(found)
        })?;
        let found = found.unwrap_or_default();
        let ranges = &found.ranges;
        let wide = |value: fn(&LineRange) -> u64| ranges.iter().map(value).collect::<Column>();
        let narrow = |value: fn(&LineRange) -> u32| ranges.iter().map(value).collect::<Column>();
        Ok((
            wide(|each| each.start),
            wide(|each| each.end),
            narrow(|each| each.file),
            narrow(|each| each.line),
            found.files.into_iter().map(OsText).collect(),
            found.next,
            is_incomplete,
        ))
    }

    /// The address that the file gives to a file offset; the offset itself if it gives none.
    fn address(&self, py: Python<'_>, offset: u64) -> PyResult<u64> {
        Ok(self.read(py)?.address(offset))
    }
}

impl Functions {
    /// What the first file says that says something, the debug file before the file itself.
    fn asked<T: Send>(
        &self,
        py: Python<'_>,
        mut ask: impl FnMut(&elf::ReadCache<File>, &Interrupt) -> Option<T> + Send,
    ) -> PyResult<Option<T>> {
        let interrupt = Interrupt::default();
        let files = self.file.debug.iter().chain(&self.file.elf);
        let said = py.detach(|| {
            files
                .filter_map(|file| file.data(LARGEST))
                .find_map(|data| ask(&data, &interrupt))
        });
        interrupt.check(py)?;
        Ok(said)
    }

    fn read(&self, py: Python<'_>) -> PyResult<&rtit_image::Functions> {
        let read = py.detach(|| self.file.get());
        let path = self.file.elf.as_ref().map_or(Path::new(""), Handle::path);
        read.map_err(|failure| failure.clone().raise(py, path))
    }
}

fn listed((value, size, name): (u64, u64, String)) -> Symbol {
    let binding = Binding::Global;
    Symbol {
        value,
        size,
        name,
        binding,
    }
}

/// What was mapped in a process over its life, with names: rows (start, end, since, until, offset, path, functions)
/// of addresses, times (TSC), the file offset of `start`, the file or another name of the memory, and its functions.
#[pyclass(frozen, module = "rtit._core")]
pub struct Names {
    names: Arc<rtit_listing::Names>,
}

type Row<'py> = (
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
    fn new(regions: Items<Row<'_>>) -> Names {
        let region = |(start, end, since, until, offset, path, functions): Row<'_>| Region {
            start,
            end,
            since,
            until,
            offset,
            module_name: rtit_listing::module_name(&path.0).into(),
            path: path.0.into(),
            functions: functions.map(|each| Arc::clone(&each.file) as Arc<dyn FunctionSource>),
        };
        let regions = regions.0.into_iter().map(region).collect();
        Names {
            names: Arc::new(rtit_listing::Names::new(regions)),
        }
    }
}

impl Names {
    pub fn cursor(&self) -> rtit_listing::NameCursor {
        rtit_listing::NameCursor::new(Arc::clone(&self.names))
    }
}
