//! Text: `Listing`, the format of the lines of a `StreamDecoder`, and `table_lines`, which prints columns.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use rtit_listing::table::{lines, Column, Name};
use rtit_listing::{AddressPeriod, Field, InstructionFilter, LineFormat, Lines, TimeScale};

use crate::arguments::Items;
use crate::image::Space;
use crate::symbols::Names;

/// Of a range: start, end, since, until.
type Bounds = (u64, u64, u64, u64);

#[pyclass(frozen, module = "rtit._core")]
pub struct Listing {
    format: LineFormat,
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
        let period = |(start, end, since, until): Bounds| AddressPeriod {
            start,
            end,
            since,
            until,
        };
        let in_space = |ranges: Items<Bounds>| ranges.0.into_iter().map(period).collect();
        let field = |name: &String| {
            let found = Field::ALL.into_iter().find(|field| field.name() == name);
            found.ok_or_else(|| PyValueError::new_err(format!("no field {name:?}")))
        };
        let fields: Vec<Field> = fields.0.iter().map(field).collect::<PyResult<_>>()?;
        if fields.is_empty() {
            return Err(PyValueError::new_err("no field given"));
        }
        let format = LineFormat {
            fields,
            tid,
            scale: clock.map(|(shift, mult, zero)| TimeScale { shift, mult, zero }),
            filter: InstructionFilter {
                periods: ranges.map(|spaces| spaces.0.into_iter().map(in_space).collect()),
                times,
                tail,
            },
        };
        let mut spaces = vec![(space, names)];
        spaces.extend(others.0);
        Ok(Listing { format, spaces })
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
        Lines::new(self.format.clone(), views.collect())
    }
}

const MAX_WIDTH: usize = 1 << 10;

#[pyfunction]
pub fn table_lines<'py>(
    py: Python<'py>,
    columns: Items<Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let columns: Vec<Column> = columns
        .0
        .iter()
        .map(table_column)
        .collect::<PyResult<_>>()?;
    let text = py.detach(|| lines(&columns));
    Ok(PyBytes::new(py, &text))
}

/// From a form and its arguments, as `_TableColumn` of `_core.pyi`.
fn table_column(given: &Bound<'_, PyTuple>) -> PyResult<Column> {
    let numbers = |index| PyBuffer::<u64>::get(&given.get_item(index)?)?.to_vec(given.py());
    let width = || match given.get_item(2)?.extract::<usize>()? {
        width if width > MAX_WIDTH => {
            Err(PyValueError::new_err(format!("a column is {width} wide")))
        }
        width => Ok(width),
    };
    match given.get_item(0)?.extract::<String>()?.as_str() {
        "hexadecimal" => Ok(Column::Hexadecimal(numbers(1)?, width()?)),
        "decimal" => Ok(Column::Decimal(numbers(1)?, width()?)),
        "signed" => Ok(Column::Signed(numbers(1)?, width()?)),
        "commas" => Ok(Column::Commas(numbers(1)?, width()?)),
        "words" => {
            let words: Items<String> = given.get_item(2)?.extract()?;
            Ok(Column::Words(numbers(1)?, words.0))
        }
        "locations" => {
            let names: Items<(String, bool)> = given.get_item(3)?.extract()?;
            let name = |(text, is_file)| Name { text, is_file };
            let names = names.0.into_iter().map(name).collect();
            Ok(Column::Places(numbers(1)?, numbers(2)?, names))
        }
        form => Err(PyValueError::new_err(format!(
            "no table column has the form {form:?}"
        ))),
    }
}
