//! Text: `Listing`, the format of the lines of a `StreamDecoder`, and `table_lines`, which prints columns.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rtit_listing::table::{lines, Column, Name};
use rtit_listing::{Field, Layout, Lines, Place, TimeScale, Wanted};

use crate::arguments::Items;
use crate::image::Space;
use crate::symbols::Names;

/// Of a range: start, end, since, until.
type Bounds = (u64, u64, u64, u64);

#[pyclass(frozen, module = "rtit._core")]
pub struct Listing {
    layout: Layout,
    /// The address spaces, with the names of each.
    spaces: Vec<(Py<Space>, Py<Names>)>,
}

#[pymethods]
impl Listing {
    #[new]
    #[pyo3(signature = (fields, space, names, *, tid, clock = None, ranges = None, times = (0, u64::MAX),
        tail = None, others = Items::default()))]
    #[allow(clippy::too_many_arguments)] // each is a keyword of the Python class
    fn new(
        fields: Items<String>,
        space: Py<Space>,
        names: Py<Names>,
        tid: i64,
        clock: Option<(u16, u32, u64)>,
        ranges: Option<Items<Items<Bounds>>>,
        times: (u64, u64),
        tail: Option<u64>,
        others: Items<(Py<Space>, Py<Names>)>,
    ) -> PyResult<Listing> {
        let place = |(start, end, since, until): Bounds| Place {
            start,
            end,
            since,
            until,
        };
        let in_space = |ranges: Items<Bounds>| ranges.0.into_iter().map(place).collect();
        let field = |name: &String| {
            let found = Field::ALL.into_iter().find(|field| field.name() == name);
            found.ok_or_else(|| PyValueError::new_err(format!("no field {name:?}")))
        };
        let fields: Vec<Field> = fields.0.iter().map(field).collect::<PyResult<_>>()?;
        if fields.is_empty() {
            return Err(PyValueError::new_err("no field given"));
        }
        let layout = Layout {
            fields,
            tid,
            scale: clock.map(|(shift, mult, zero)| TimeScale { shift, mult, zero }),
            wanted: Wanted {
                places: ranges.map(|spaces| spaces.0.into_iter().map(in_space).collect()),
                times,
                tail,
            },
        };
        let mut spaces = vec![(space, names)];
        spaces.extend(others.0);
        Ok(Listing { layout, spaces })
    }

    #[classattr]
    #[pyo3(name = "FIELDS")]
    fn fields() -> Vec<&'static str> {
        Field::ALL.into_iter().map(Field::name).collect()
    }
}

impl Listing {
    pub fn sink(&self) -> Lines {
        let spaces = self.spaces.iter();
        let views = spaces.map(|(space, names)| (space.get().inner().view(), names.get().cursor()));
        Lines::new(self.layout.clone(), views.collect())
    }
}

const MAX_WIDTH: usize = 1 << 10;

/// A column of `table_lines`, as `TableColumn` of `_core.pyi`.
#[derive(FromPyObject)]
pub enum GivenColumn<'py> {
    Number(String, Bound<'py, PyAny>, usize),
    Words(String, Bound<'py, PyAny>, Items<String>),
    Places(
        String,
        Bound<'py, PyAny>,
        Bound<'py, PyAny>,
        Items<(String, bool)>,
    ),
}

#[pyfunction]
pub fn table_lines<'py>(
    py: Python<'py>,
    columns: Items<GivenColumn<'py>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let columns = columns.0.into_iter().map(|given| table_column(py, given));
    let columns: Vec<Column> = columns.collect::<PyResult<_>>()?;
    let text = py.detach(|| lines(&columns));
    Ok(PyBytes::new(py, &text))
}

fn table_column(py: Python<'_>, given: GivenColumn<'_>) -> PyResult<Column> {
    let numbers = |object: &Bound<'_, PyAny>| PyBuffer::<u64>::get(object)?.to_vec(py);
    let unknown = |form| PyValueError::new_err(format!("no table column has the form {form:?}"));
    match given {
        GivenColumn::Number(_, _, width) if width > MAX_WIDTH => {
            Err(PyValueError::new_err(format!("a column is {width} wide")))
        }
        GivenColumn::Number(form, column, width) => {
            let column = numbers(&column)?;
            match form.as_str() {
                "hexadecimal" => Ok(Column::Hexadecimal(column, width)),
                "decimal" => Ok(Column::Decimal(column, width)),
                "signed" => Ok(Column::Signed(column, width)),
                "commas" => Ok(Column::Commas(column, width)),
                _ => Err(unknown(form)),
            }
        }
        GivenColumn::Words(form, column, words) if form == "words" => {
            Ok(Column::Words(numbers(&column)?, words.0))
        }
        GivenColumn::Places(form, column, offsets, names) if form == "places" => {
            let name = |(text, is_file)| Name { text, is_file };
            let names = names.0.into_iter().map(name).collect();
            Ok(Column::Places(numbers(&column)?, numbers(&offsets)?, names))
        }
        GivenColumn::Words(form, ..) | GivenColumn::Places(form, ..) => Err(unknown(form)),
    }
}
