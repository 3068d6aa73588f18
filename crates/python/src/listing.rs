//! `Listing`: how the lines of a `Flow` are to look, for Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rtit_listing::{AddressPeriod, Field, InstructionFilter, LineFormat, Lines, TimeScale};

use crate::arguments::Items;
use crate::image::Space;
use crate::names::Names;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Listing>()
}

/// Of a place: start, end, since, until.
type Bounds = (u64, u64, u64, u64);

/// How the lines of a stream look, and which it has.
///
/// `fields` are of FIELDS, in the order of the line; `space` is that of the Flow and `names` has its process's names;
/// `others` are the other spaces of the Flow in their order, with their names. `clock` is (shift, mult, zero) to make
/// nanoseconds of TSC values, else times are TSC values. Instructions have a line if they are in any of the `places` of
/// their space, by its number (start, end, since, until: addresses and TSC values, half-open; None: all), and their run
/// began within `times` (TSC, the first and the last); `tail` leaves out all but the last lines. ValueError: no such
/// field, or none.
#[pyclass(frozen, module = "rtit._core")]
pub struct Listing {
    format: LineFormat,
    /// With the names in each.
    spaces: Vec<(Py<Space>, Py<Names>)>,
}

#[pymethods]
impl Listing {
    #[new]
    #[pyo3(signature = (fields, space, names, *, tid, clock = None, places = None, times = (0, u64::MAX),
        tail = None, others = Items::default()))]
    #[allow(clippy::too_many_arguments)] // each is a keyword of the Python class
    fn new(
        fields: Items<String>,
        space: Py<Space>,
        names: Py<Names>,
        tid: i64,
        clock: Option<(u16, u32, u64)>,
        places: Option<Items<Items<Bounds>>>,
        times: (u64, u64),
        tail: Option<u64>,
        others: Items<(Py<Space>, Py<Names>)>,
    ) -> PyResult<Listing> {
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
                periods: places.map(|places| places.0.into_iter().map(of_space).collect()),
                times,
                tail,
            },
        };
        let mut spaces = vec![(space, names)];
        spaces.extend(others.0);
        Ok(Listing { format, spaces })
    }

    /// The fields that there are.
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

fn of_space(places: Items<Bounds>) -> Vec<AddressPeriod> {
    places.0.into_iter().map(place).collect()
}

fn place((start, end, since, until): Bounds) -> AddressPeriod {
    AddressPeriod {
        start,
        end,
        since,
        until,
    }
}
