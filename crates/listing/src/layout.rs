//! What a line has, and which instructions get one.

/// A column of the listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    Tid,
    Time,
    Ip,
    Sym,
    Asm,
}

impl Field {
    pub const ALL: [Field; 5] = [Field::Ip, Field::Tid, Field::Time, Field::Sym, Field::Asm];

    pub const fn name(self) -> &'static str {
        match self {
            Field::Tid => "tid",
            Field::Time => "time",
            Field::Ip => "ip",
            Field::Sym => "sym",
            Field::Asm => "asm",
        }
    }
}

/// TSC to nanoseconds: zero + (tsc * mult >> shift), modulo 2^64, as in perf's TIME_CONV.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeScale {
    pub shift: u16,
    pub mult: u32,
    pub zero: u64,
}

impl TimeScale {
    pub fn nanoseconds(self, tsc: u64) -> u64 {
        let scaled = u128::from(tsc) * u128::from(self.mult);
        let scaled = scaled.checked_shr(self.shift.into()).unwrap_or(0);
        self.zero.wrapping_add(scaled as u64)
    }
}

/// Addresses from `start` up to `end`, from time `since` up to `until` (TSC).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub start: u64,
    pub end: u64,
    pub since: u64,
    pub until: u64,
}

/// Which instructions are listed.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Those in any of these places, for each address space by its number; `None`: all.
    pub places: Option<Vec<Vec<Place>>>,
    /// Those whose run began within: the first and the last TSC value.
    pub times: (u64, u64),
    /// Of these only so many, the last ones.
    pub tail: Option<u64>,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted {
            places: None,
            times: (0, u64::MAX),
            tail: None,
        }
    }
}

impl Wanted {
    /// The first time after `time` at which the places differ.
    pub(crate) fn next_border(&self, time: u64) -> u64 {
        let places = self.places.iter().flatten().flatten();
        let borders = places.flat_map(|place| [place.since, place.until]);
        let later = borders.filter(|&border| border > time);
        later.min().unwrap_or(u64::MAX)
    }

    pub(crate) fn takes(&self, space: u32, ip: u64, time: u64) -> bool {
        let holds = |place: &Place| {
            (place.start..place.end).contains(&ip) && place.since <= time && time < place.until
        };
        self.places.as_ref().is_none_or(|places| {
            let mut here = places.get(space as usize).into_iter().flatten();
            here.any(holds)
        })
    }
}

/// How a listing looks.
#[derive(Clone, Debug)]
pub struct Layout {
    pub fields: Vec<Field>,
    pub tid: i64,
    pub scale: Option<TimeScale>,
    pub wanted: Wanted,
}

impl Layout {
    pub(crate) fn has(&self, field: Field) -> bool {
        self.fields.contains(&field)
    }
}
