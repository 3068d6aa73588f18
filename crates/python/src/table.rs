//! `table_lines`: columns as text, for Python.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rtit_listing::table::{lines, Column, Name};

use crate::arguments::Items;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(table_lines, module)?)
}

/// The form, numbers (an array of u64), and then for each form: a width; words; offsets (u64) and names, each with
/// whether it is a file.
#[derive(FromPyObject)]
enum Given<'py> {
    Number(String, Bound<'py, PyAny>, usize),
    Words(String, Bound<'py, PyAny>, Items<String>),
    Places(
        String,
        Bound<'py, PyAny>,
        Bound<'py, PyAny>,
        Items<(String, bool)>,
    ),
}

/// Columns as lines of UTF-8, as many as the shortest has rows, a blank between two columns and none at the end. Each
/// is ("hexadecimal" | "decimal" | "signed" | "commas", numbers, width), on the right of a width of at most 1024
/// characters: of "decimal" 2^64-1 is `-`, "signed" takes two's complement; ("words", numbers, words), a word that
/// there is not being empty; or ("places", numbers, offsets, names), as `rtit.image.Location` is printed, on the left
/// of 32 characters. Numbers and offsets are arrays of u64. ValueError for another form or a wider column.
#[pyfunction]
fn table_lines<'py>(py: Python<'py>, columns: Items<Given<'py>>) -> PyResult<Bound<'py, PyBytes>> {
    let columns = columns.0.into_iter().map(|each| column(py, each));
    let columns: Vec<Column> = columns.collect::<PyResult<_>>()?;
    let text = py.detach(|| lines(&columns));
    Ok(PyBytes::new(py, &text))
}

/// No column is wider.
const WIDEST: usize = 1 << 10;

fn column(py: Python<'_>, given: Given<'_>) -> PyResult<Column> {
    let numbers = |object: &Bound<'_, PyAny>| PyBuffer::<u64>::get(object)?.to_vec(py);
    let unknown = |form: String| PyValueError::new_err(format!("no column is {form}"));
    match given {
        Given::Number(_, _, width) if width > WIDEST => {
            Err(PyValueError::new_err(format!("a column of {width}")))
        }
        Given::Number(form, column, width) => {
            let column = numbers(&column)?;
            match form.as_str() {
                "hexadecimal" => Ok(Column::Hexadecimal(column, width)),
                "decimal" => Ok(Column::Decimal(column, width)),
                "signed" => Ok(Column::Signed(column, width)),
                "commas" => Ok(Column::Commas(column, width)),
                _ => Err(unknown(form)),
            }
        }
        Given::Words(form, column, words) if form == "words" => {
            Ok(Column::Words(numbers(&column)?, words.0))
        }
        Given::Places(form, column, offsets, names) if form == "places" => {
            let name = |(text, is_file)| Name { text, is_file };
            let names = names.0.into_iter().map(name).collect();
            Ok(Column::Places(numbers(&column)?, numbers(&offsets)?, names))
        }
        Given::Words(form, ..) | Given::Places(form, ..) => Err(unknown(form)),
    }
}
