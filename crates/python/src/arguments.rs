//! Arguments that PyO3's own conversions take badly: names of files that no bytes make, which end in a panic, and
//! sequences, for which it reserves what their length promises.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rtit_memory::{look, Grow};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::heap::bounded;

/// No list that the module takes is as long in any real use.
const MOST: usize = 1 << 22;
/// Room that is reserved before an item was seen.
const FIRST: usize = 1 << 10;

/// The name of a file, or another word of the operating system: str, bytes or path.
///
/// UnicodeEncodeError for a str that no bytes make.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OsText(pub OsString);

impl<'py> FromPyObject<'py> for OsText {
    fn extract_bound(object: &Bound<'py, PyAny>) -> PyResult<OsText> {
        let encode = object.py().import("os")?.getattr("fsencode")?;
        Ok(OsText(OsString::from_vec(
            encode.call1((object,))?.extract()?,
        )))
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

impl<'py, T: FromPyObject<'py>> FromPyObject<'py> for Items<T> {
    fn extract_bound(object: &Bound<'py, PyAny>) -> PyResult<Items<T>> {
        extracted(object, MOST).map(Items)
    }
}

/// A sequence that grows with a recording, of any length.
pub struct All<T>(pub Vec<T>);

impl<'py, T: FromPyObject<'py>> FromPyObject<'py> for All<T> {
    fn extract_bound(object: &Bound<'py, PyAny>) -> PyResult<All<T>> {
        extracted(object, usize::MAX).map(All)
    }
}

fn extracted<'py, T: FromPyObject<'py>>(
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
    bounded(object.py(), || {
        let mut items = Vec::with_capacity(length.min(FIRST));
        for item in object.try_iter()? {
            // a sequence may say one length and have another
            if items.len() == most {
                return Err(too_many());
            }
            look();
            items.put(item?.extract()?);
        }
        Ok(items)
    })
}
