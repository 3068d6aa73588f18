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

use crate::arguments::BoundedItems;

/// Name, dtype ("u1", "u4", "u8", "i4", "i8", "f8"), and the labels of categories by number.
type Field = (String, String, Vec<String>);

/// A batch of a stream. Each has its own labels of categories.
type Batch<'py> = (BoundedItems<Field>, BoundedItems<Bound<'py, PyAny>>);

#[pyfunction]
pub fn arrow_schema(py: Python<'_>, fields: BoundedItems<Field>) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, ArrowSchema::from_fields(&fields.0)?, c"arrow_schema")
}

#[pyfunction]
pub fn arrow_array<'py>(
    py: Python<'py>,
    fields: BoundedItems<Field>,
    columns: BoundedItems<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let array = ArrowArray::from_columns(&fields.0, &columns.0)?;
    PyCapsule::new_with_value(py, array, c"arrow_array")
}

#[pyfunction]
pub fn arrow_stream<'py>(
    py: Python<'py>,
    fields: BoundedItems<Field>,
    batches: Bound<'py, PyIterator>,
) -> PyResult<Bound<'py, PyCapsule>> {
    ArrowSchema::from_fields(&fields.0)?; // raises the error of an invalid field now
    let stream = ArrowArrayStream {
        get_schema: Some(get_schema),
        get_next: Some(get_next),
        get_last_error: Some(get_last_error),
        release: Some(ArrowArrayStream::release),
        private_data: into_private_data(StreamBatches {
            fields: fields.0,
            iterator: batches.unbind(),
            error: CString::default(),
        }),
    };
    PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
}

/// ArrowSchema.
#[repr(C)]
struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut ArrowSchema,
    dictionary: *mut ArrowSchema,
    release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    private_data: *mut c_void,
}

/// ArrowArray.
#[repr(C)]
struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

/// ArrowArrayStream.
#[repr(C)]
struct ArrowArrayStream {
    get_schema: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowSchema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowArray) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut ArrowArrayStream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut ArrowArrayStream)>,
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

impl_release!(ArrowSchema, ArrowArray, ArrowArrayStream);

/// The children and the dictionary of a schema or an array.
struct NestedArrowParts<T> {
    _children: Vec<T>,
    pointers: Vec<*mut T>,
    dictionary: Option<Box<T>>,
}

// SAFETY: the pointers lead to the children.
unsafe impl<T: Send> Send for NestedArrowParts<T> {}

impl<T> NestedArrowParts<T> {
    fn new(mut children: Vec<T>, dictionary: Option<T>) -> NestedArrowParts<T> {
        NestedArrowParts {
            pointers: children.iter_mut().map(ptr::from_mut).collect(),
            _children: children,
            dictionary: dictionary.map(Box::new),
        }
    }

    fn dictionary_pointer(&mut self) -> *mut T {
        self.dictionary
            .as_deref_mut()
            .map_or(ptr::null_mut(), ptr::from_mut)
    }
}

fn arrow_format_of_dtype(dtype: &str) -> PyResult<&'static str> {
    match dtype {
        "u1" => Ok("C"),
        "u4" => Ok("I"),
        "u8" => Ok("L"),
        "i8" => Ok("l"),
        "i4" => Ok("i"),
        "f8" => Ok("g"),
        _ => Err(PyValueError::new_err(format!(
            "dtype {dtype} is not supported"
        ))),
    }
}

impl ArrowSchema {
    fn new(
        format: &str,
        name: &str,
        children: Vec<ArrowSchema>,
        dictionary: Option<ArrowSchema>,
    ) -> PyResult<ArrowSchema> {
        let (format, name) = (CString::new(format)?, CString::new(name)?);
        let mut nested = NestedArrowParts::new(children, dictionary);
        Ok(ArrowSchema {
            format: format.as_ptr(),
            name: name.as_ptr(),
            metadata: ptr::null(),
            flags: 0,
            n_children: nested.pointers.len() as i64,
            children: nested.pointers.as_mut_ptr(),
            dictionary: nested.dictionary_pointer(),
            release: Some(ArrowSchema::release),
            private_data: into_private_data((format, name, nested)),
        })
    }

    fn from_fields(fields: &[Field]) -> PyResult<ArrowSchema> {
        let child = |(name, dtype, labels): &Field| {
            let has_labels = !labels.is_empty();
            let strings = has_labels.then(|| ArrowSchema::new("u", "", Vec::new(), None));
            ArrowSchema::new(
                arrow_format_of_dtype(dtype)?,
                name,
                Vec::new(),
                strings.transpose()?,
            )
        };
        let children = fields.iter().map(child).collect::<PyResult<_>>()?;
        ArrowSchema::new("+s", "", children, None)
    }
}

/// The buffers of an array, and the owner of their memory.
struct ArrayBuffers {
    addresses: Vec<*const c_void>,
    _owner: Box<dyn Any + Send>,
}

// SAFETY: the addresses are within the owner's memory.
unsafe impl Send for ArrayBuffers {}

impl ArrowArray {
    fn new(
        length: usize,
        addresses: Vec<*const c_void>,
        owner: Box<dyn Any + Send>,
        children: Vec<ArrowArray>,
        dictionary: Option<ArrowArray>,
    ) -> ArrowArray {
        let mut nested = NestedArrowParts::new(children, dictionary);
        let mut buffers = ArrayBuffers {
            addresses,
            _owner: owner,
        };
        ArrowArray {
            length: length as i64,
            null_count: 0,
            offset: 0,
            n_buffers: buffers.addresses.len() as i64,
            n_children: nested.pointers.len() as i64,
            buffers: buffers.addresses.as_mut_ptr(),
            children: nested.pointers.as_mut_ptr(),
            dictionary: nested.dictionary_pointer(),
            release: Some(ArrowArray::release),
            private_data: into_private_data((buffers, nested)),
        }
    }

    fn from_columns(fields: &[Field], columns: &[Bound<'_, PyAny>]) -> PyResult<ArrowArray> {
        if fields.len() != columns.len() {
            let message = format!("{} columns for {} fields", columns.len(), fields.len());
            return Err(PyValueError::new_err(message));
        }
        let child = |((_, dtype, labels), column): (&Field, &Bound<'_, PyAny>)| {
            let strings = (!labels.is_empty()).then(|| ArrowArray::from_strings(labels));
            match dtype.as_str() {
                "u1" => ArrowArray::from_buffer::<u8>(column, strings),
                "u4" => ArrowArray::from_buffer::<u32>(column, strings),
                "u8" => ArrowArray::from_buffer::<u64>(column, strings),
                "i4" => ArrowArray::from_buffer::<i32>(column, strings),
                "i8" => ArrowArray::from_buffer::<i64>(column, strings),
                "f8" => ArrowArray::from_buffer::<f64>(column, strings),
                _ => Err(PyValueError::new_err(format!(
                    "dtype {dtype} is not supported"
                ))),
            }
        };
        let children = fields.iter().zip(columns).map(child);
        let children: Vec<ArrowArray> = children.collect::<PyResult<_>>()?;
        let length = children.first().map_or(0, |child| child.length);
        if children.iter().any(|child| child.length != length) {
            return Err(PyValueError::new_err("columns of different lengths"));
        }
        let no_validity = vec![ptr::null()];
        Ok(ArrowArray::new(
            length as usize,
            no_validity,
            Box::new(()),
            children,
            None,
        ))
    }

    fn from_buffer<T: Element + Send + 'static>(
        column: &Bound<'_, PyAny>,
        dictionary: Option<ArrowArray>,
    ) -> PyResult<ArrowArray> {
        let buffer = PyBuffer::<T>::get(column)?;
        if !buffer.is_c_contiguous() || buffer.dimensions() != 1 {
            return Err(PyTypeError::new_err("a column is not contiguous"));
        }
        let addresses = vec![ptr::null(), buffer.buf_ptr().cast_const()];
        let length = buffer.item_count();
        Ok(ArrowArray::new(
            length,
            addresses,
            Box::new(buffer),
            Vec::new(),
            dictionary,
        ))
    }

    fn from_strings(strings: &[String]) -> ArrowArray {
        let mut ends = vec![0];
        let mut text = String::new();
        for string in strings {
            text.push_str(string);
            ends.push(text.len() as i32);
        }
        let addresses = vec![ptr::null(), ends.as_ptr().cast(), text.as_ptr().cast()];
        ArrowArray::new(
            strings.len(),
            addresses,
            Box::new((ends, text)),
            Vec::new(),
            None,
        )
    }
}

/// The private data of a stream.
struct StreamBatches {
    fields: Vec<Field>,
    iterator: Py<PyIterator>,
    error: CString,
}

const EIO: c_int = 5;

/// # Safety
/// `stream` was not released.
unsafe fn batches_of<'a>(stream: *mut ArrowArrayStream) -> Option<&'a mut StreamBatches> {
    // SAFETY: calls for one stream do not overlap, and its data is from `into_private_data`.
    unsafe { (*(*stream).private_data.cast::<Box<dyn Any + Send>>()).downcast_mut() }
}

/// Writes the result of `make` to `out` and returns 0, or keeps its error and returns EIO.
///
/// # Safety
/// `stream` was not released, and `out` is memory for a value.
unsafe fn write_result<T>(
    stream: *mut ArrowArrayStream,
    out: *mut T,
    make: impl FnOnce(Python<'_>, &StreamBatches) -> PyResult<T>,
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

unsafe extern "C" fn get_schema(stream: *mut ArrowArrayStream, out: *mut ArrowSchema) -> c_int {
    // SAFETY: the consumer passes a stream that was not released, and memory for a schema.
    unsafe {
        write_result(stream, out, |_, batches| {
            ArrowSchema::from_fields(&batches.fields)
        })
    }
}

unsafe extern "C" fn get_next(stream: *mut ArrowArrayStream, out: *mut ArrowArray) -> c_int {
    let next = |py: Python<'_>, batches: &StreamBatches| {
        let Some(batch) = batches.iterator.bind(py).clone().next() else {
            // SAFETY: its fields are numbers and pointers that may be null. Such an array is the end of a stream.
            return Ok(unsafe { std::mem::zeroed() });
        };
        let (fields, columns) = batch?.extract::<Batch<'_>>()?;
        ArrowArray::from_columns(&fields.0, &columns.0)
    };
    // SAFETY: the consumer passes a stream that was not released, and memory for an array.
    unsafe { write_result(stream, out, next) }
}

unsafe extern "C" fn get_last_error(stream: *mut ArrowArrayStream) -> *const c_char {
    // SAFETY: the consumer passes a stream that was not released; the text stays until its next call.
    unsafe { batches_of(stream) }.map_or(ptr::null(), |batches| batches.error.as_ptr())
}
