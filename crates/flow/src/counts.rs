//! Counts of one stream: packets, instructions, branches, cycles.

use crate::errata::Erratum;
use rtit_packet::table::ROWS;
use rtit_packet::Kind;

/// Counts of a stream. Instructions and branches are those that were decoded.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Packets by kind, PSB+ contents included.
    pub packets: [u64; ROWS.len()],
    pub instructions: u64,
    /// Conditional branches.
    pub conditional: u64,
    /// Indirect jumps and calls, far transfers, system calls: all that took a TIP and is no near RET.
    pub indirect: u64,
    /// Near RETs.
    pub returns: u64,
    /// Near RETs that took a TNT bit.
    pub compressed_returns: u64,
    /// Asynchronous events (FUP and TIP or TIP.PGD).
    pub asynchronous: u64,
    /// Core cycles that CYC packets report.
    pub cycles: u64,
    /// Core cycles between timing packets that tell the time, and the TSC ticks between these: the ratio is that of
    /// core clock and TSC (section 33.8.3.4).
    pub measured: (u64, u64),
    /// TSC ticks in which nothing was traced: what lies between a TSC outside PSB+, or while tracing is off, and the
    /// time by the cycles before it (section 33.3.6).
    pub inactive: u64,
    /// How often a stream was read as an erratum of its processor asks, by `Erratum`.
    pub errata: [u64; Erratum::ALL.len()],
}

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            packets: [0; ROWS.len()],
            instructions: 0,
            conditional: 0,
            indirect: 0,
            returns: 0,
            compressed_returns: 0,
            asynchronous: 0,
            cycles: 0,
            measured: (0, 0),
            inactive: 0,
            errata: [0; Erratum::ALL.len()],
        }
    }
}

impl Counts {
    /// Packets of one kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.packets.get(kind as usize).copied().unwrap_or(0)
    }

    /// Adds those of what follows.
    pub(crate) fn add(&mut self, more: &Counts) {
        for (sum, more) in self.packets.iter_mut().zip(&more.packets) {
            *sum += more;
        }
        for (sum, more) in self.errata.iter_mut().zip(&more.errata) {
            *sum += more;
        }
        self.add_flow(more);
        self.asynchronous += more.asynchronous;
        self.cycles = self.cycles.saturating_add(more.cycles);
        self.measured.0 = self.measured.0.saturating_add(more.measured.0);
        self.measured.1 = self.measured.1.saturating_add(more.measured.1);
        self.inactive = self.inactive.saturating_add(more.inactive);
    }

    /// Adds instructions and branches.
    pub(crate) fn add_flow(&mut self, more: &Counts) {
        self.instructions += more.instructions;
        self.conditional += more.conditional;
        self.indirect += more.indirect;
        self.returns += more.returns;
        self.compressed_returns += more.compressed_returns;
    }

    /// Takes off instructions and branches that were added before.
    pub(crate) fn take_off_flow(&mut self, less: &Counts) {
        self.instructions -= less.instructions;
        self.conditional -= less.conditional;
        self.indirect -= less.indirect;
        self.returns -= less.returns;
        self.compressed_returns -= less.compressed_returns;
    }

    pub(crate) fn erratum(&mut self, erratum: Erratum) {
        if let Some(count) = self.errata.get_mut(erratum as usize) {
            *count += 1;
        }
    }

    pub(crate) fn packets(&mut self, kind: Kind, more: u64) {
        if let Some(count) = self.packets.get_mut(kind as usize) {
            *count += more;
        }
    }

    #[inline]
    pub(crate) fn packet(&mut self, kind: Kind) {
        if let Some(count) = self.packets.get_mut(kind as usize) {
            *count += 1;
        }
    }
}
