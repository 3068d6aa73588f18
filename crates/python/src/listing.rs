//! Text: `Listing`, the format of the lines of a `StreamDecoder`, and `table_lines`, which prints columns.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use rtit_listing::table::{format_table_lines, AddressName, TableColumn};
use rtit_listing::{
    AddressPeriod, InstructionFilter, LineFormat, ListingColumn, ListingSink, TimeScale,
};

use crate::arguments::BoundedItems;
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
        indexes = (0, u64::MAX), tail = None, others = BoundedItems::default()))]
    #[allow(clippy::too_many_arguments)] // each is a keyword of the Python class
    fn new(
        fields: BoundedItems<String>,
        space: Py<Space>,
        names: Py<Names>,
        tid: i64,
        clock: Option<(u16, u32, u64)>,
        ranges: Option<BoundedItems<BoundedItems<Bounds>>>,
        times: (u64, u64),
        indexes: (u64, u64),
        tail: Option<u64>,
        others: BoundedItems<(Py<Space>, Py<Names>)>,
    ) -> PyResult<Listing> {
        let period = |(start, end, since, until): Bounds| AddressPeriod {
            start,
            end,
            since,
            until,
        };
        let in_space = |ranges: BoundedItems<Bounds>| ranges.0.into_iter().map(period).collect();
        let field = |name: &String| {
            let found = ListingColumn::ALL
                .into_iter()
                .find(|field| field.column_name() == name);
            found.ok_or_else(|| PyValueError::new_err(format!("no field {name:?}")))
        };
        let fields: Vec<ListingColumn> = fields.0.iter().map(field).collect::<PyResult<_>>()?;
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
                indexes,
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
        ListingColumn::ALL
            .into_iter()
            .map(ListingColumn::column_name)
            .collect()
    }
}

impl Listing {
    pub fn new_listing_sink(&self) -> ListingSink {
        let spaces = self.spaces.iter();
        let views = spaces.map(|(space, names)| {
            (
                space.get().image_space().view_at_start(),
                names.get().new_name_cursor(),
            )
        });
        ListingSink::new(self.format.clone(), views.collect())
    }
}

const MAX_WIDTH: usize = 1 << 10;

#[pyfunction]
pub fn table_lines<'py>(
    py: Python<'py>,
    columns: BoundedItems<Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let columns: Vec<TableColumn> = columns
        .0
        .iter()
        .map(table_column_from_tuple)
        .collect::<PyResult<_>>()?;
    let text = py.detach(|| format_table_lines(&columns));
    Ok(PyBytes::new(py, &text))
}

/// From a form and its arguments, as `_TableColumn` of `_core.pyi`.
fn table_column_from_tuple(given: &Bound<'_, PyTuple>) -> PyResult<TableColumn> {
    let numbers = |index| PyBuffer::<u64>::get(&given.get_item(index)?)?.to_vec(given.py());
    let width = || match given.get_item(2)?.extract::<usize>()? {
        width if width > MAX_WIDTH => {
            Err(PyValueError::new_err(format!("a column is {width} wide")))
        }
        width => Ok(width),
    };
    match given.get_item(0)?.extract::<String>()?.as_str() {
        "hexadecimal" => Ok(TableColumn::Hexadecimal(numbers(1)?, width()?)),
        "decimal" => Ok(TableColumn::Decimal(numbers(1)?, width()?)),
        "signed" => Ok(TableColumn::Signed(numbers(1)?, width()?)),
        "commas" => Ok(TableColumn::Commas(numbers(1)?, width()?)),
        "words" => {
            let words: BoundedItems<String> = given.get_item(2)?.extract()?;
            Ok(TableColumn::Words(numbers(1)?, words.0))
        }
        "locations" => {
            let names: BoundedItems<(String, bool)> = given.get_item(3)?.extract()?;
            let name = |(text, is_file)| AddressName { text, is_file };
            let names = names.0.into_iter().map(name).collect();
            Ok(TableColumn::Places(numbers(1)?, numbers(2)?, names))
        }
        form => Err(PyValueError::new_err(format!(
            "no table column has the form {form:?}"
        ))),
    }
}
