//! What timing packets told, one by one, for whoever wants more of time than one estimate.

/// A timing packet, and what is known since.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// Stream offset of the packet.
    pub offset: u64,
    /// TSC estimate.
    pub time: u64,
    /// Core cycles counted by CYCs so far.
    pub cycles: u64,
    /// Core cycles in a tick of the TSC, at which CYCs count from here on; NaN: not known.
    pub frequency: f64,
    /// The packet said what time it is (TSC, or MTC after one with its TMA); else `time` is reckoned from CYCs.
    pub known: bool,
    /// From point to point of one span every cycle was counted, at one frequency.
    pub span: u64,
}

/// Points that wait to be taken. Each has a number, from 1 on: that is what rows have as their time meanwhile.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Points {
    pub waiting: Vec<Point>,
    /// How many there were.
    pub count: u64,
}

impl Points {
    pub fn push(&mut self, point: Point) {
        self.waiting.push(point);
        self.count += 1;
    }
}
