//! Power event trace: MWAIT, PWRE, EXSTOP and PWRX (sections 33.2.3 and 33.4.2.22 to 33.4.2.25; power tables in 33.7).
//!
//! C-states are encodings of MWAIT: 0 is C1. The modelled clock does not run while the processor sleeps, so a sleep
//! takes no time.

use crate::packet_bytes::{exstop_packet, mwait_packet, pwre_packet, pwrx_packet};
use crate::unit::TraceUnit;

/// The operands of a MWAIT: bits 7:0 of EAX and bits 1:0 of ECX.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MwaitOperands {
    pub hints: u8,
    pub extensions: u8,
}

impl TraceUnit {
    /// The instruction at `ip` puts the processor into a C-state deeper than C0. `mwait`: it is an MWAIT.
    pub fn sleep(&mut self, ip: u64, state: u8, sub_state: u8, mwait: Option<MwaitOperands>) {
        if !self.config.pwr_evt_en || !self.core.trigger_en {
            return;
        }
        let context_en = self.core.context_en;
        self.flush_tnt();
        self.put_cyc_if_due();
        if let Some(mwait) = mwait.filter(|_| context_en) {
            self.buffer
                .put_bytes(&mwait_packet(mwait.hints, mwait.extensions));
        }
        self.buffer.put_packet(pwre_packet(state, sub_state));
        self.buffer.put_packet(exstop_packet(context_en));
        if context_en {
            self.put_fup(ip);
        }
        self.finish_event();
    }

    /// The processor returns to C0, before the cause of the wake is handled. `last` and `deepest`: C-states of the
    /// core. `reason`: one bit of Table 33-44. The core clock runs again, which the timing packets show without power
    /// event trace, too (Table 33-55, row 25).
    pub fn wake(&mut self, last: u8, deepest: u8, reason: u8) {
        if !self.core.trigger_en {
            return;
        }
        self.flush_tnt();
        if self.config.cyc_en {
            self.put_cyc();
        }
        self.put_tsc_and_tma();
        self.put_cbr();
        if self.config.pwr_evt_en {
            self.buffer.put_packet(pwrx_packet(last, deepest, reason));
        }
        self.finish_event();
    }
}
