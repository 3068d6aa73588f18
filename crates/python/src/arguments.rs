//! What PyO3's own conversions do badly: of arguments, names of files that no bytes make, which end in a panic, and
//! sequences, for which it reserves what their length promises; of results, names of files, which are UTF-8 to it
//! wherever they can be, in any locale.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// No list that the module takes is as long in any real use.
const MOST: usize = 1 << 22;
/// Room that is reserved before an item was seen.
const FIRST: usize = 1 << 10;

/// The name of a file, or another word of the operating system: str, bytes or path, and as a result the str that
/// `os.fsdecode` makes of it.
///
/// UnicodeEncodeError for a str that no bytes make.
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
        os_text(py, &self.0)
    }
}

/// As `os.fsdecode`: what Python's own names of files are equal to.
pub fn os_text<'py>(py: Python<'py>, name: &OsStr) -> PyResult<Bound<'py, PyString>> {
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

/// A sequence of at most `MOST` items. ValueError if there are more.
pub struct Items<T>(pub Vec<T>);

impl<T> Default for Items<T> {
    fn default() -> Items<T> {
        Items(Vec::new())
    }
}

impl<'a, 'py, T: FromPyObjectOwned<'py>> FromPyObject<'a, 'py> for Items<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Items<T>> {
        extracted(&object, MOST).map(Items)
    }
}

/// A sequence that grows with a recording, of any length.
pub struct All<T>(pub Vec<T>);

impl<'a, 'py, T: FromPyObjectOwned<'py>> FromPyObject<'a, 'py> for All<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<All<T>> {
        extracted(&object, usize::MAX).map(All)
    }
}

fn extracted<'py, T: FromPyObjectOwned<'py>>(
    object: &Bound<'py, PyAny>,
    most: usize,
) -> PyResult<Vec<T>> {
    if object.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("a str is no sequence of items"));
    }
    let length = object.len()?;
    let too_many = || PyValueError::new_err(format!("more than {most} items"));
    if length > most {
        return Err(too_many());
    }
    let mut items = Vec::with_capacity(length.min(FIRST));
    for item in object.try_iter()? {
        // a sequence may say one length and have another
        if items.len() == most {
            return Err(too_many());
        }
        items.push(item?.extract().map_err(Into::into)?);
    }
    Ok(items)
}
