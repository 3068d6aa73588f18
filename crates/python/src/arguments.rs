//! Conversions of arguments and results, where those of PyO3 do not fit.
//!
//! PyO3 panics on a file name that cannot be encoded, assumes that file names are UTF-8, and reserves as much memory as
//! the length of a sequence promises.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use rtit_x86::CodeMode;

/// A string of the operating system, such as a file name: as an argument str, bytes or path, as a result the str of
/// `os.fsdecode`. UnicodeEncodeError for a str that cannot be encoded.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OsText(pub OsString);

impl<'a, 'py> FromPyObject<'a, 'py> for OsText {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<OsText> {
        let encode = object.py().import("os")?.getattr("fsencode")?;
        Ok(OsText(OsString::from_vec(
            encode.call1((object,))?.extract()?,
        )))
    }
}

impl<'py> IntoPyObject<'py> for OsText {
    type Target = PyString;
    type Output = Bound<'py, PyString>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        os_text_to_str(py, &self.0)
    }
}

/// The str of `os.fsdecode`, which Python's own file names are equal to.
pub fn os_text_to_str<'py>(py: Python<'py>, name: &OsStr) -> PyResult<Bound<'py, PyString>> {
    match name.to_str().filter(|text| text.is_ascii()) {
        Some(text) => Ok(PyString::new(py, text)),
        None => {
            let decode = py.import("os")?.getattr("fsdecode")?;
            Ok(decode
                .call1((PyBytes::new(py, name.as_bytes()),))?
                .cast_into()?)
        }
    }
}

impl From<OsText> for PathBuf {
    fn from(text: OsText) -> PathBuf {
        text.0.into()
    }
}

/// Items of a longer sequence are not read: no list that the module takes is as long in any real use.
const MAX_ITEMS: usize = 1 << 22;
/// Items for which memory is reserved before any has been read.
const RESERVED_ITEMS: usize = 1 << 10;

/// A sequence of at most `MAX` items. ValueError if there are more.
pub struct BoundedItems<T, const MAX: usize = MAX_ITEMS>(pub Vec<T>);

/// A sequence that grows with a recording, of any length.
pub type AllItems<T> = BoundedItems<T, { usize::MAX }>;

impl<T> Default for BoundedItems<T> {
    fn default() -> BoundedItems<T> {
        BoundedItems(Vec::new())
    }
}

impl<'a, 'py, T: FromPyObjectOwned<'py>, const MAX: usize> FromPyObject<'a, 'py>
    for BoundedItems<T, MAX>
{
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err("a str is not a sequence of items"));
        }
        let length = object.len()?;
        let mut items = Vec::with_capacity(length.min(RESERVED_ITEMS));
        // A sequence may report one length and have another.
        if length <= MAX {
            for item in object.try_iter()?.take(MAX.saturating_add(1)) {
                items.push(item?.extract().map_err(Into::into)?);
            }
        }
        match length.max(items.len()) <= MAX {
            true => Ok(BoundedItems(items)),
            false => Err(PyValueError::new_err(format!("more than {MAX} items"))),
        }
    }
}

/// The mode of code by its bits. ValueError unless they are 16, 32 or 64.
pub fn code_mode_of_bits(bits: u32) -> PyResult<CodeMode> {
    match bits {
        16 => Ok(CodeMode::Bits16),
        32 => Ok(CodeMode::Bits32),
        64 => Ok(CodeMode::Bits64),
        _ => Err(PyValueError::new_err(format!(
            "bits is {bits}: it must be 16, 32 or 64"
        ))),
    }
}

/// Builds a dict with string keys: `dict_of!(py, name: value, ...)`.
macro_rules! dict_of {
    ($py:expr, $($name:ident: $value:expr),* $(,)?) => {{
        let dict = pyo3::types::PyDict::new($py);
        $(dict.set_item(pyo3::intern!($py, stringify!($name)), $value)?;)*
        PyResult::Ok(dict)
    }};
}
pub(crate) use dict_of;
