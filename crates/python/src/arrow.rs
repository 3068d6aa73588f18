//! Columns as Arrow has them: the C data interface and its PyCapsules
//! (<https://arrow.apache.org/docs/format/CDataInterface.html>). Nothing is copied.

use std::any::Any;
use std::ffi::{c_char, c_int, c_void, CString};
use std::ptr;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyIterator};

use crate::arguments::Items;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(arrow_schema, module)?)?;
    module.add_function(wrap_pyfunction!(arrow_array, module)?)?;
    module.add_function(wrap_pyfunction!(arrow_stream, module)?)
}

/// Name, dtype ("u1", "u4", "u8", "i4", "f8"), and of categories the label of each number from 0 on.
type Field = (String, String, Vec<String>);

/// The schema of a struct with these fields, as a capsule.
#[pyfunction]
fn arrow_schema(py: Python<'_>, fields: Items<Field>) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, Schema::of(&fields.0)?, c"arrow_schema")
}

/// A struct of columns, NumPy arrays or other buffers of one length, as a capsule.
#[pyfunction]
fn arrow_array<'py>(
    py: Python<'py>,
    fields: Items<Field>,
    columns: Items<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let array = Array::of(&fields.0, &columns.0)?;
    PyCapsule::new_with_value(py, array, c"arrow_array")
}

/// An iterator of lists of columns as a capsule.
#[pyfunction]
fn arrow_stream<'py>(
    py: Python<'py>,
    fields: Items<Field>,
    batches: Bound<'py, PyIterator>,
) -> PyResult<Bound<'py, PyCapsule>> {
    Schema::of(&fields.0)?;
    let own = Box::new(Batches {
        fields: fields.0,
        iterator: batches.unbind(),
        error: CString::default(),
    });
    let stream = Stream {
        get_schema: Some(get_schema),
        get_next: Some(get_next),
        get_last_error: Some(get_last_error),
        release: Some(release_stream),
        own: Box::into_raw(own).cast(),
    };
    PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
}

fn format_of(dtype: &str) -> PyResult<&'static str> {
    match dtype {
        "u1" => Ok("C"),
        "u4" => Ok("I"),
        "u8" => Ok("L"),
        "i4" => Ok("i"),
        "f8" => Ok("g"),
        _ => Err(PyValueError::new_err(format!(
            "no column has dtype {dtype}"
        ))),
    }
}

fn text(text: &str) -> PyResult<CString> {
    Ok(CString::new(text)?)
}

/// ArrowSchema. Whoever takes it over sets `release` to null here.
#[repr(C)]
struct Schema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut Schema,
    dictionary: *mut Schema,
    release: Option<unsafe extern "C" fn(*mut Schema)>,
    own: *mut c_void,
}

/// What a schema's pointers point to.
struct SchemaOwn {
    format: CString,
    name: CString,
    children: Vec<Schema>,
    pointers: Vec<*mut Schema>,
    dictionary: Option<Box<Schema>>,
}

// SAFETY: its pointers lead to what it owns alone, which is plain memory.
unsafe impl Send for Schema {}

impl Drop for Schema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: not released yet, and `own` is what `new` put there.
            unsafe { release(self) }
        }
    }
}

unsafe extern "C" fn release_schema(schema: *mut Schema) {
    // SAFETY: the caller has a schema that was not released; `own` is from `Box::into_raw` in `new`.
    unsafe {
        (*schema).release = None;
        drop(Box::from_raw((*schema).own.cast::<SchemaOwn>()));
    }
}

impl Schema {
    fn new(
        format: &str,
        name: &str,
        children: Vec<Schema>,
        dictionary: Option<Schema>,
    ) -> PyResult<Schema> {
        let mut own = Box::new(SchemaOwn {
            format: text(format)?,
            name: text(name)?,
            children,
            pointers: Vec::new(),
            dictionary: dictionary.map(Box::new),
        });
        own.pointers = own
            .children
            .iter_mut()
            .map(|child| ptr::addr_of_mut!(*child))
            .collect();
        Ok(Schema {
            format: own.format.as_ptr(),
            name: own.name.as_ptr(),
            metadata: ptr::null(),
            flags: 0,
            n_children: own.children.len() as i64,
            children: own.pointers.as_mut_ptr(),
            dictionary: own
                .dictionary
                .as_mut()
                .map_or(ptr::null_mut(), |schema| ptr::addr_of_mut!(**schema)),
            release: Some(release_schema),
            own: Box::into_raw(own).cast(),
        })
    }

    fn of(fields: &[Field]) -> PyResult<Schema> {
        let child = |(name, dtype, labels): &Field| {
            let words = match labels.is_empty() {
                true => None,
                false => Some(Schema::new("u", "", Vec::new(), None)?),
            };
            Schema::new(format_of(dtype)?, name, Vec::new(), words)
        };
        let children = fields.iter().map(child).collect::<PyResult<_>>()?;
        Schema::new("+s", "", children, None)
    }
}

type Kept = Box<dyn Any + Send>;

/// ArrowArray.
#[repr(C)]
struct Array {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut Array,
    dictionary: *mut Array,
    release: Option<unsafe extern "C" fn(*mut Array)>,
    own: *mut c_void,
}

/// What an array's pointers point to.
struct ArrayOwn {
    buffers: Vec<*const c_void>,
    children: Vec<Array>,
    pointers: Vec<*mut Array>,
    dictionary: Option<Box<Array>>,
    /// What the buffers are of.
    _kept: Kept,
}

// SAFETY: its pointers lead to what it owns alone: plain memory, and buffers that Python keeps as long as they are
// held.
unsafe impl Send for Array {}

impl Drop for Array {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: not released yet, and `own` is what `new` put there.
            unsafe { release(self) }
        }
    }
}

unsafe extern "C" fn release_array(array: *mut Array) {
    // SAFETY: the caller has an array that was not released; `own` is from `Box::into_raw` in `new`.
    unsafe {
        (*array).release = None;
        drop(Box::from_raw((*array).own.cast::<ArrayOwn>()));
    }
}

impl Array {
    /// What a stream gives at its end.
    const END: Array = Array {
        length: 0,
        null_count: 0,
        offset: 0,
        n_buffers: 0,
        n_children: 0,
        buffers: ptr::null_mut(),
        children: ptr::null_mut(),
        dictionary: ptr::null_mut(),
        release: None,
        own: ptr::null_mut(),
    };

    fn new(
        length: usize,
        buffers: Vec<*const c_void>,
        children: Vec<Array>,
        dictionary: Option<Array>,
        kept: Kept,
    ) -> Array {
        let mut own = Box::new(ArrayOwn {
            buffers,
            children,
            pointers: Vec::new(),
            dictionary: dictionary.map(Box::new),
            _kept: kept,
        });
        own.pointers = own
            .children
            .iter_mut()
            .map(|child| ptr::addr_of_mut!(*child))
            .collect();
        Array {
            length: length as i64,
            null_count: 0,
            offset: 0,
            n_buffers: own.buffers.len() as i64,
            n_children: own.children.len() as i64,
            buffers: own.buffers.as_mut_ptr(),
            children: own.pointers.as_mut_ptr(),
            dictionary: own
                .dictionary
                .as_mut()
                .map_or(ptr::null_mut(), |array| ptr::addr_of_mut!(**array)),
            release: Some(release_array),
            own: Box::into_raw(own).cast(),
        }
    }

    fn of(fields: &[Field], columns: &[Bound<'_, PyAny>]) -> PyResult<Array> {
        if fields.len() != columns.len() {
            return Err(PyValueError::new_err("not as many columns as fields"));
        }
        let mut children = Vec::new();
        for ((name, dtype, labels), column) in fields.iter().zip(columns) {
            let (length, place, kept) = match dtype.as_str() {
                "u1" => taken::<u8>(column)?,
                "u4" => taken::<u32>(column)?,
                "u8" => taken::<u64>(column)?,
                "i4" => taken::<i32>(column)?,
                "f8" => taken::<f64>(column)?,
                _ => return Err(format_of(dtype).err().unwrap_or_else(|| missing(name))),
            };
            let words = (!labels.is_empty()).then(|| Array::words(labels));
            children.push(Array::new(
                length,
                vec![ptr::null(), place],
                Vec::new(),
                words,
                kept,
            ));
        }
        let length = children.first().map_or(0, |child| child.length);
        if children.iter().any(|child| child.length != length) {
            return Err(PyValueError::new_err("columns of different lengths"));
        }
        Ok(Array::new(
            length as usize,
            vec![ptr::null()],
            children,
            None,
            Box::new(()),
        ))
    }

    /// An array of strings.
    fn words(labels: &[String]) -> Array {
        let mut ends = vec![0];
        let mut all = String::new();
        for label in labels {
            all.push_str(label);
            ends.push(all.len() as i32);
        }
        // where they are does not change when they move into the array
        let buffers = vec![ptr::null(), ends.as_ptr().cast(), all.as_ptr().cast()];
        Array::new(
            labels.len(),
            buffers,
            Vec::new(),
            None,
            Box::new((ends, all)),
        )
    }
}

fn missing(name: &str) -> PyErr {
    PyTypeError::new_err(format!("column {name} is no buffer of its dtype"))
}

fn taken<T: Element + Send + 'static>(
    column: &Bound<'_, PyAny>,
) -> PyResult<(usize, *const c_void, Kept)> {
    let buffer = PyBuffer::<T>::get(column)?;
    if !buffer.is_c_contiguous() || buffer.dimensions() != 1 {
        return Err(PyTypeError::new_err("a column does not lie in one piece"));
    }
    let (length, place) = (buffer.item_count(), buffer.buf_ptr().cast_const());
    Ok((length, place, Box::new(buffer)))
}

/// ArrowArrayStream.
#[repr(C)]
struct Stream {
    get_schema: Option<unsafe extern "C" fn(*mut Stream, *mut Schema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut Stream, *mut Array) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut Stream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut Stream)>,
    own: *mut c_void,
}

struct Batches {
    fields: Vec<Field>,
    iterator: Py<PyIterator>,
    error: CString,
}

// SAFETY: what it owns is used with the GIL alone, or is plain memory.
unsafe impl Send for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: not released yet, and `own` is what `arrow_stream` put there.
            unsafe { release(self) }
        }
    }
}

unsafe extern "C" fn release_stream(stream: *mut Stream) {
    // SAFETY: the caller has a stream that was not released; `own` is from `Box::into_raw`.
    unsafe {
        (*stream).release = None;
        let own = Box::from_raw((*stream).own.cast::<Batches>());
        Python::attach(|_| drop(own));
    }
}

const FAILED: c_int = 5; // EIO

/// Puts what `make` gives where the consumer wants it; the number of an error if it fails.
unsafe fn give<T>(
    stream: *mut Stream,
    out: *mut T,
    make: impl FnOnce(Python<'_>, &Batches) -> PyResult<T>,
) -> c_int {
    // SAFETY: the consumer gives a stream that was not released, and a place for `out` that holds nothing yet; calls
    // for one stream do not overlap.
    unsafe {
        let own = &mut *(*stream).own.cast::<Batches>();
        match Python::attach(|py| make(py, own).map_err(|error| error.to_string())) {
            Ok(made) => {
                ptr::write(out, made);
                0
            }
            Err(error) => {
                own.error = CString::new(error.replace('\0', " ")).unwrap_or_default();
                FAILED
            }
        }
    }
}

unsafe extern "C" fn get_schema(stream: *mut Stream, out: *mut Schema) -> c_int {
    // SAFETY: as `give` asks.
    unsafe { give(stream, out, |_, own| Schema::of(&own.fields)) }
}

unsafe extern "C" fn get_next(stream: *mut Stream, out: *mut Array) -> c_int {
    let next = |py: Python<'_>, own: &Batches| {
        let Some(batch) = own.iterator.bind(py).clone().next() else {
            return Ok(Array::END);
        };
        Array::of(&own.fields, &batch?.extract::<Items<Bound<'_, PyAny>>>()?.0)
    };
    // SAFETY: as `give` asks.
    unsafe { give(stream, out, next) }
}

unsafe extern "C" fn get_last_error(stream: *mut Stream) -> *const c_char {
    // SAFETY: the consumer gives a stream that was not released; the text stays until its next call.
    unsafe { (*(*stream).own.cast::<Batches>()).error.as_ptr() }
}
