//! The clock that perf prints of (docs/decisions/0030): what it says after each packet that tells of time.
//!
//! It never goes back. A TSC or MTC right behind a CYC is a moment from which the CYCs after it are counted, and so is
//! another ratio; how long cycles are behind an MTC is taken from the packets up to the next such MTC ([`Scout`]), so that
//! these wait until it comes. Where it does not come, or makes cycles far longer than CBR says, CBR's ratio holds. A TSC
//! that comes by itself leaves the count as it is.

use rtit_packet::Kind;

use crate::time::{nearest, TimeSettings, TSC_BITS};

mod crystal;
mod scout;

use crystal::Crystal;
use scout::{Outlook, Scout};

/// So many packets wait at most; then CBR's ratio holds.
const WAITING: usize = 1 << 20;
/// A cycle is not taken for longer than so many times what CBR says.
const MOST: f64 = 1.25;

/// What a packet told perf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PerfTime {
    pub offset: u64,
    /// What the clock says now; of a PSB+ its TSC.
    pub time: u64,
    pub what: PerfTold,
}

/// What of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PerfTold {
    /// The time, for whatever needs a packet that comes later.
    Time,
    /// The ratio of CBR, no time.
    Ratio(u8),
    /// That something is at this place: the time of all that runs behind it.
    Place,
}

/// Takes the packets of a stream in order.
pub struct PerfClock {
    /// Offsets at which perf's buffers end, the next one last: it looks no further ahead.
    ends: Vec<u64>,
    told: Vec<PerfTime>,
    /// The packet that told last: of those that follow each other the last tells all.
    last_told: u64,
    taken: u64,
    after_cyc: bool,
    /// The FUP that comes is a packet's before it.
    bound: bool,
    waiting: Vec<Packet>,
    scout: Option<Scout>,
    reckoned: Reckoned,
}

/// One that waits until it is known how long a cycle is.
#[derive(Clone, Copy)]
struct Packet {
    kind: Kind,
    payload: u64,
    offset: u64,
    number: u64,
    after_cyc: bool,
    is_place: bool,
}

struct Reckoned {
    settings: TimeSettings,
    now: u64,
    /// A TSC has come.
    begun: bool,
    /// The last TSC, also where it was behind `now`.
    tsc: u64,
    crystal: Option<Crystal>,
    in_guest: bool,
    ratio: u8,
    /// From when on cycles are counted; 0: no such moment has come.
    since: u64,
    cycles: u64,
    ticks_of_cycle: Option<f64>,
}

impl PerfClock {
    /// `ends`: offsets at which the buffers end that perf has the stream in.
    pub fn new(settings: TimeSettings, mut ends: Vec<u64>) -> PerfClock {
        ends.sort_unstable_by(|a, b| b.cmp(a));
        PerfClock {
            ends,
            told: Vec::new(),
            last_told: u64::MAX,
            taken: 0,
            after_cyc: false,
            bound: false,
            waiting: Vec::new(),
            scout: None,
            reckoned: Reckoned {
                settings: settings.sound(),
                now: settings.start_time,
                begun: false,
                tsc: 0,
                crystal: None,
                in_guest: false,
                ratio: 0,
                since: 0,
                cycles: 0,
                ticks_of_cycle: None,
            },
        }
    }

    /// `offset`: of the packet in the stream; `detail` and `payload` as `rtit_packet::Columns` has them.
    pub fn take(&mut self, kind: Kind, detail: u8, payload: u64, offset: u64) {
        if kind == Kind::Pad {
            return;
        }
        while self.ends.last().is_some_and(|&end| end <= offset) {
            self.ends.pop();
            self.settle(None);
        }
        let packet = Packet {
            kind,
            payload: match kind {
                Kind::Pip => u64::from(detail & 1),
                _ => payload,
            },
            offset,
            number: self.taken,
            is_place: self.is_place(kind, detail),
            after_cyc: std::mem::replace(&mut self.after_cyc, kind == Kind::Cyc),
        };
        self.taken += 1;
        let Some(scout) = &mut self.scout else {
            self.apply(packet);
            return;
        };
        let outlook = scout.see(kind, payload, packet.after_cyc);
        if packet.is_place || matters(kind) {
            self.waiting.push(packet);
        }
        match outlook {
            Outlook::Open if self.waiting.len() < WAITING => {}
            Outlook::Open | Outlook::Nothing => self.settle(None),
            Outlook::Cycle { ticks, ratio } => {
                let ratio = if ratio == 0 {
                    self.reckoned.ratio
                } else {
                    ratio
                };
                let too_long = match self.reckoned.ticks_by_ratio(ratio) {
                    Some(by_ratio) => ticks > by_ratio && ticks / by_ratio > MOST,
                    None => false,
                };
                self.settle((!too_long).then_some(ticks));
            }
        }
    }

    /// Packets are missing here.
    pub fn lose(&mut self) {
        self.settle(None);
        self.reckoned.crystal = None;
        self.after_cyc = false;
        self.taken += 1;
    }

    /// Nothing more comes.
    pub fn end(&mut self) {
        self.settle(None);
    }

    /// What was told since this was asked last. What waits comes later.
    pub fn take_told(&mut self) -> Vec<PerfTime> {
        std::mem::take(&mut self.told)
    }

    /// It is known how long a cycle is, or that nothing tells it: what waited goes on.
    fn settle(&mut self, ticks_of_cycle: Option<f64>) {
        if self.scout.take().is_none() {
            return;
        }
        self.reckoned.ticks_of_cycle = ticks_of_cycle;
        let mut waiting = std::mem::take(&mut self.waiting);
        for &packet in &waiting {
            self.apply(packet);
        }
        waiting.clear();
        self.waiting = waiting;
    }

    fn apply(&mut self, packet: Packet) {
        let Packet {
            kind,
            payload,
            offset,
            ..
        } = packet;
        let reckoned = &mut self.reckoned;
        let told = match kind {
            Kind::Tsc => {
                reckoned.tsc(payload);
                if packet.after_cyc {
                    reckoned.count_from_now();
                }
                true
            }
            Kind::Tma => {
                let known = Crystal::of_tma(payload, reckoned.tsc, reckoned.settings);
                reckoned.crystal = known.or(reckoned.crystal);
                false
            }
            Kind::Mtc => {
                let told = reckoned.mtc(payload as u8);
                if told && packet.after_cyc {
                    reckoned.count_from_now();
                    self.scout = reckoned.crystal.map(|it| Scout::new(it, reckoned.now));
                }
                told
            }
            Kind::Cyc => reckoned.cyc(payload),
            Kind::Pip => {
                reckoned.in_guest = payload != 0;
                false
            }
            Kind::TraceStop => {
                reckoned.crystal = None;
                false
            }
            Kind::Cbr => {
                let ratio = payload as u8;
                if reckoned.cbr(ratio) {
                    self.tell(offset, PerfTold::Place);
                }
                self.tell(offset, PerfTold::Ratio(ratio));
                false
            }
            Kind::PsbEnd => {
                // also where that is behind
                let time = reckoned.tsc;
                let what = PerfTold::Place;
                self.told.push(PerfTime { offset, time, what });
                false
            }
            Kind::Ovf => true,
            _ => false,
        };
        if packet.is_place {
            self.tell(offset, PerfTold::Place);
        }
        if told {
            if self.last_told.wrapping_add(1) == packet.number {
                // nothing came behind it, unless it was taken out
                self.told.pop();
            }
            self.last_told = packet.number;
            self.tell(offset, PerfTold::Time);
        }
    }

    fn tell(&mut self, offset: u64, what: PerfTold) {
        let time = self.reckoned.now;
        self.told.push(PerfTime { offset, time, what });
    }

    /// Whether perf lists something at this packet, be it an event that is not asked for.
    fn is_place(&mut self, kind: Kind, detail: u8) -> bool {
        let bound = match kind {
            Kind::Ptw | Kind::ExStop | Kind::Bep | Kind::Cfe => detail & 1 != 0,
            Kind::ModeTsx | Kind::Mwait => true,
            // what came before it is told with it
            Kind::Pwre | Kind::Pwrx | Kind::Fup => false,
            Kind::Cyc | Kind::Mtc | Kind::Tsc | Kind::Cbr => return false,
            _ => {
                self.bound = false;
                return false;
            }
        };
        let was_bound = std::mem::replace(&mut self.bound, bound);
        match kind {
            Kind::Fup => was_bound,
            Kind::ModeTsx | Kind::Mwait => false,
            Kind::Pwre if was_bound => {
                self.bound = true;
                false
            }
            _ => !bound,
        }
    }
}

impl Reckoned {
    fn tsc(&mut self, payload: u64) {
        self.crystal = None;
        let payload = self.of_host(payload);
        self.tsc = nearest(payload, self.now);
        if self.tsc > self.now || !self.begun {
            self.now = self.tsc;
        }
        self.begun = true;
    }

    /// What a TSC packet would have been outside a guest.
    fn of_host(&self, payload: u64) -> u64 {
        if !self.in_guest {
            return payload;
        }
        let guest = self.settings.guest;
        guest.to_host(nearest(payload, guest.of_host(self.now))) & (TSC_BITS - 1)
    }

    /// Whether it told the time.
    fn mtc(&mut self, ctc: u8) -> bool {
        let Some(crystal) = &mut self.crystal else {
            return false;
        };
        self.now = self.now.max(crystal.mtc(ctc));
        true
    }

    /// Whether it is another.
    fn cbr(&mut self, ratio: u8) -> bool {
        let is_another = self.ratio != ratio;
        if is_another {
            self.ratio = ratio;
            // how long a cycle is does not change with it, if that was told
            (self.since, self.cycles) = (if self.begun { self.now } else { 0 }, 0);
        }
        is_another
    }

    fn count_from_now(&mut self) {
        (self.since, self.cycles) = (self.now, 0);
        self.ticks_of_cycle = None;
    }

    /// Whether it told the time.
    fn cyc(&mut self, cycles: u64) -> bool {
        self.cycles = self.cycles.saturating_add(cycles);
        let ticks = self
            .ticks_of_cycle
            .or_else(|| self.ticks_by_ratio(self.ratio));
        let (Some(ticks), true) = (ticks, self.since != 0) else {
            return false;
        };
        let time = self.since as f64 + self.cycles as f64 * ticks;
        self.now = self.now.max(time as u64);
        true
    }

    fn ticks_by_ratio(&self, ratio: u8) -> Option<f64> {
        let nominal = f64::from(self.settings.max_nonturbo_ratio);
        (ratio != 0).then(|| nominal / f64::from(ratio))
    }
}

/// Whether a packet changes the clock, or tells something.
fn matters(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Tsc
            | Kind::Tma
            | Kind::Mtc
            | Kind::Cyc
            | Kind::Cbr
            | Kind::Pip
            | Kind::Ovf
            | Kind::PsbEnd
            | Kind::TraceStop
    )
}
