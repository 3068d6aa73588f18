//! How long the cycles are that CYCs count from a moment on: what the packets behind it tell.

use rtit_packet::Kind;

use super::crystal::Crystal;

/// Goes ahead from an MTC that came right behind a CYC.
#[derive(Clone, Copy, Debug)]
pub struct Scout {
    crystal: Crystal,
    from: u64,
    /// The last MTC that was passed over.
    last: u64,
    cycles: u64,
    /// What CBRs said; 0: none came.
    ratio: u8,
    /// Nothing has come.
    first: bool,
}

/// What is known so far.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Outlook {
    Open,
    /// TSC ticks of a core cycle, and what CBRs on the way said (0: there was none).
    Cycle {
        ticks: f64,
        ratio: u8,
    },
    /// It will not be told.
    Nothing,
}

impl Scout {
    /// `now`: what the clock says at the MTC, which is not less than what that told.
    pub fn new(crystal: Crystal, now: u64) -> Scout {
        Scout {
            crystal,
            from: now,
            last: now,
            cycles: 0,
            ratio: 0,
            first: true,
        }
    }

    /// The next packet; padding is none.
    pub fn see(&mut self, kind: Kind, payload: u64, after_cyc: bool) -> Outlook {
        // what comes right behind the MTC is taken to have the CYC before it that the MTC has
        let after_cyc = std::mem::take(&mut self.first) || after_cyc;
        match kind {
            Kind::Cyc => self.cycles = self.cycles.saturating_add(payload),
            Kind::Mtc => return self.mtc(payload as u8, after_cyc),
            Kind::Cbr if self.ratio == 0 || self.ratio == payload as u8 => {
                self.ratio = payload as u8;
            }
            Kind::Cbr | Kind::Tsc | Kind::Tma | Kind::TipPgd | Kind::TraceStop | Kind::Ovf => {
                return Outlook::Nothing;
            }
            Kind::ExStop | Kind::Mwait | Kind::Pwre | Kind::Pwrx | Kind::Trig => {
                return Outlook::Nothing;
            }
            _ => {}
        }
        Outlook::Open
    }

    fn mtc(&mut self, ctc: u8, after_cyc: bool) -> Outlook {
        let time = self.crystal.mtc(ctc);
        if time < self.last || (after_cyc && self.cycles == 0) {
            return Outlook::Nothing;
        }
        if !after_cyc {
            self.last = time;
            return Outlook::Open;
        }
        Outlook::Cycle {
            ticks: (time - self.from) as f64 / self.cycles as f64,
            ratio: self.ratio,
        }
    }
}
