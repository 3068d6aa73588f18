//! Columns as Arrow has them: the C data interface and its PyCapsules
//! (<https://arrow.apache.org/docs/format/CDataInterface.html>). Nothing is copied.
//!
//! A consumer takes a struct over by moving it out of the capsule and setting `release` to null there; it calls
//! `release` when it is done. `private_data` owns everything that the other pointers of a struct lead to.

use std::any::Any;
use std::ffi::{c_char, c_int, c_void, CString};
use std::ptr;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyIterator};

use crate::arguments::Items;

/// Name, dtype ("u1", "u4", "u8", "i4", "f8"), and the labels of categories by number.
type Field = (String, String, Vec<String>);

#[pyfunction]
pub fn arrow_schema(py: Python<'_>, fields: Items<Field>) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, Schema::from_fields(&fields.0)?, c"arrow_schema")
}

#[pyfunction]
pub fn arrow_array<'py>(
    py: Python<'py>,
    fields: Items<Field>,
    columns: Items<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let array = Array::from_columns(&fields.0, &columns.0)?;
    PyCapsule::new_with_value(py, array, c"arrow_array")
}

#[pyfunction]
pub fn arrow_stream<'py>(
    py: Python<'py>,
    fields: Items<Field>,
    batches: Bound<'py, PyIterator>,
) -> PyResult<Bound<'py, PyCapsule>> {
    Schema::from_fields(&fields.0)?; // raises the error of an invalid field now
    let stream = Stream {
        get_schema: Some(get_schema),
        get_next: Some(get_next),
        get_last_error: Some(get_last_error),
        release: Some(Stream::release),
        private_data: into_private_data(Batches {
            fields: fields.0,
            iterator: batches.unbind(),
            error: CString::default(),
        }),
    };
    PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
}

/// ArrowSchema.
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
    private_data: *mut c_void,
}

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
    private_data: *mut c_void,
}

/// ArrowArrayStream.
#[repr(C)]
struct Stream {
    get_schema: Option<unsafe extern "C" fn(*mut Stream, *mut Schema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut Stream, *mut Array) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut Stream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut Stream)>,
    private_data: *mut c_void,
}

fn into_private_data<T: Send + 'static>(data: T) -> *mut c_void {
    let data: Box<dyn Any + Send> = Box::new(data);
    Box::into_raw(Box::new(data)).cast()
}

macro_rules! impl_release {
    ($($name:ident),*) => {$(
        impl $name {
            unsafe extern "C" fn release(this: *mut $name) {
                // SAFETY: the caller has a struct that was not released; its data is from `into_private_data`.
                unsafe {
                    (*this).release = None;
                    drop(Box::from_raw((*this).private_data.cast::<Box<dyn Any + Send>>()));
                }
            }
        }

        // SAFETY: its pointers lead to its private data only, which can be sent.
        unsafe impl Send for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                if let Some(release) = self.release {
                    // SAFETY: nobody has released the struct or taken it over.
                    unsafe { release(self) }
                }
            }
        }
    )*};
}

impl_release!(Schema, Array, Stream);

/// The children and the dictionary of a schema or an array.
struct Nested<T> {
    _children: Vec<T>,
    pointers: Vec<*mut T>,
    dictionary: Option<Box<T>>,
}

// SAFETY: the pointers lead to the children.
unsafe impl<T: Send> Send for Nested<T> {}

impl<T> Nested<T> {
    fn new(mut children: Vec<T>, dictionary: Option<T>) -> Nested<T> {
        Nested {
            pointers: children.iter_mut().map(ptr::from_mut).collect(),
            _children: children,
            dictionary: dictionary.map(Box::new),
        }
    }

    fn dictionary(&mut self) -> *mut T {
        self.dictionary
            .as_deref_mut()
            .map_or(ptr::null_mut(), ptr::from_mut)
    }
}

fn format_of(dtype: &str) -> PyResult<&'static str> {
    match dtype {
        "u1" => Ok("C"),
        "u4" => Ok("I"),
        "u8" => Ok("L"),
        "i4" => Ok("i"),
        "f8" => Ok("g"),
        _ => Err(PyValueError::new_err(format!(
            "dtype {dtype} is not supported"
        ))),
    }
}

impl Schema {
    fn new(
        format: &str,
        name: &str,
        children: Vec<Schema>,
        dictionary: Option<Schema>,
    ) -> PyResult<Schema> {
        let (format, name) = (CString::new(format)?, CString::new(name)?);
        let mut nested = Nested::new(children, dictionary);
        Ok(Schema {
            format: format.as_ptr(),
            name: name.as_ptr(),
            metadata: ptr::null(),
            flags: 0,
            n_children: nested.pointers.len() as i64,
            children: nested.pointers.as_mut_ptr(),
            dictionary: nested.dictionary(),
            release: Some(Schema::release),
            private_data: into_private_data((format, name, nested)),
        })
    }

    fn from_fields(fields: &[Field]) -> PyResult<Schema> {
        let child = |(name, dtype, labels): &Field| {
            let has_labels = !labels.is_empty();
            let strings = has_labels.then(|| Schema::new("u", "", Vec::new(), None));
            Schema::new(format_of(dtype)?, name, Vec::new(), strings.transpose()?)
        };
        let children = fields.iter().map(child).collect::<PyResult<_>>()?;
        Schema::new("+s", "", children, None)
    }
}

/// The buffers of an array, and the owner of their memory.
struct Buffers {
    addresses: Vec<*const c_void>,
    _owner: Box<dyn Any + Send>,
}

// SAFETY: the addresses are within the owner's memory.
unsafe impl Send for Buffers {}

impl Array {
    fn new(
        length: usize,
        addresses: Vec<*const c_void>,
        owner: Box<dyn Any + Send>,
        children: Vec<Array>,
        dictionary: Option<Array>,
    ) -> Array {
        let mut nested = Nested::new(children, dictionary);
        let mut buffers = Buffers {
            addresses,
            _owner: owner,
        };
        Array {
            length: length as i64,
            null_count: 0,
            offset: 0,
            n_buffers: buffers.addresses.len() as i64,
            n_children: nested.pointers.len() as i64,
            buffers: buffers.addresses.as_mut_ptr(),
            children: nested.pointers.as_mut_ptr(),
            dictionary: nested.dictionary(),
            release: Some(Array::release),
            private_data: into_private_data((buffers, nested)),
        }
    }

    fn from_columns(fields: &[Field], columns: &[Bound<'_, PyAny>]) -> PyResult<Array> {
        if fields.len() != columns.len() {
            let message = format!("{} columns for {} fields", columns.len(), fields.len());
            return Err(PyValueError::new_err(message));
        }
        let child = |((_, dtype, labels), column): (&Field, &Bound<'_, PyAny>)| {
            let strings = (!labels.is_empty()).then(|| Array::from_strings(labels));
            match dtype.as_str() {
                "u1" => Array::from_buffer::<u8>(column, strings),
                "u4" => Array::from_buffer::<u32>(column, strings),
                "u8" => Array::from_buffer::<u64>(column, strings),
                "i4" => Array::from_buffer::<i32>(column, strings),
                "f8" => Array::from_buffer::<f64>(column, strings),
                _ => Err(PyValueError::new_err(format!(
                    "dtype {dtype} is not supported"
                ))),
            }
        };
        let children = fields.iter().zip(columns).map(child);
        let children: Vec<Array> = children.collect::<PyResult<_>>()?;
        let length = children.first().map_or(0, |child| child.length);
        if children.iter().any(|child| child.length != length) {
            return Err(PyValueError::new_err("columns of different lengths"));
        }
        let no_validity = vec![ptr::null()];
        Ok(Array::new(
            length as usize,
            no_validity,
            Box::new(()),
            children,
            None,
        ))
    }

    fn from_buffer<T: Element + Send + 'static>(
        column: &Bound<'_, PyAny>,
        dictionary: Option<Array>,
    ) -> PyResult<Array> {
        let buffer = PyBuffer::<T>::get(column)?;
        if !buffer.is_c_contiguous() || buffer.dimensions() != 1 {
            return Err(PyTypeError::new_err("a column is not contiguous"));
        }
        let addresses = vec![ptr::null(), buffer.buf_ptr().cast_const()];
        let length = buffer.item_count();
        Ok(Array::new(
            length,
            addresses,
            Box::new(buffer),
            Vec::new(),
            dictionary,
        ))
    }

    fn from_strings(strings: &[String]) -> Array {
        let mut ends = vec![0];
        let mut text = String::new();
        for string in strings {
            text.push_str(string);
            ends.push(text.len() as i32);
        }
        let addresses = vec![ptr::null(), ends.as_ptr().cast(), text.as_ptr().cast()];
        Array::new(
            strings.len(),
            addresses,
            Box::new((ends, text)),
            Vec::new(),
            None,
        )
    }
}

/// The private data of a stream.
struct Batches {
    fields: Vec<Field>,
    iterator: Py<PyIterator>,
    error: CString,
}

const EIO: c_int = 5;

/// # Safety
/// `stream` was not released.
unsafe fn batches_of<'a>(stream: *mut Stream) -> Option<&'a mut Batches> {
    // SAFETY: calls for one stream do not overlap, and its data is from `into_private_data`.
    unsafe { (*(*stream).private_data.cast::<Box<dyn Any + Send>>()).downcast_mut() }
}

/// Writes the result of `make` to `out` and returns 0, or keeps its error and returns EIO.
///
/// # Safety
/// `stream` was not released, and `out` is memory for a value.
unsafe fn write_result<T>(
    stream: *mut Stream,
    out: *mut T,
    make: impl FnOnce(Python<'_>, &Batches) -> PyResult<T>,
) -> c_int {
    // SAFETY: as for this function.
    let Some(batches) = (unsafe { batches_of(stream) }) else {
        return EIO;
    };
    match Python::attach(|py| make(py, batches).map_err(|error| error.to_string())) {
        Ok(value) => {
            // SAFETY: as for this function.
            unsafe { ptr::write(out, value) };
            0
        }
        Err(error) => {
            batches.error = CString::new(error.replace('\0', " ")).unwrap_or_default();
            EIO
        }
    }
}

unsafe extern "C" fn get_schema(stream: *mut Stream, out: *mut Schema) -> c_int {
    // SAFETY: the consumer passes a stream that was not released, and memory for a schema.
    unsafe {
        write_result(stream, out, |_, batches| {
            Schema::from_fields(&batches.fields)
        })
    }
}

unsafe extern "C" fn get_next(stream: *mut Stream, out: *mut Array) -> c_int {
    let next = |py: Python<'_>, batches: &Batches| {
        let Some(batch) = batches.iterator.bind(py).clone().next() else {
            // SAFETY: its fields are numbers and pointers that may be null. Such an array is the end of a stream.
            return Ok(unsafe { std::mem::zeroed() });
        };
        let columns = batch?.extract::<Items<Bound<'_, PyAny>>>()?;
        Array::from_columns(&batches.fields, &columns.0)
    };
    // SAFETY: the consumer passes a stream that was not released, and memory for an array.
    unsafe { write_result(stream, out, next) }
}

unsafe extern "C" fn get_last_error(stream: *mut Stream) -> *const c_char {
    // SAFETY: the consumer passes a stream that was not released; the text stays until its next call.
    unsafe { batches_of(stream) }.map_or(ptr::null(), |batches| batches.error.as_ptr())
}
