//! Near branches (sections 33.2.1.1, 33.2.1.2 and 33.4.2.1 to 33.4.2.5).
//!
//! These are nearly all events of a trace, so each begins with the case that nothing but its own packet can happen. The
//! other case is the whole rule. No packet carries a branch's own address.

use crate::encode::short_tnt;
use crate::settings::TntForm;
use crate::state::NEVER;
use crate::unit::Unit;

impl Unit {
    /// Up to this clock, exclusive, `quietly` may be called, and `at` need not be: nothing comes by itself, and nothing
    /// but its own packet can follow from a near branch. 0 if that cannot be said.
    #[inline(always)]
    pub fn quiet_until(&self) -> u64 {
        if !self.core.plain || self.core.cyc_due != NEVER {
            return 0;
        }
        match self.clocks.cpi {
            1 => self.core.due,
            cpi => self.core.due.div_ceil(cpi),
        }
    }

    /// A conditional branch (`results` is 1), or a direct jump or straight code (0), that goes on at `ip`, before
    /// `quiet_until`. False, and nothing has changed, if that makes a packet.
    #[inline(always)]
    pub fn quietly(&mut self, results: u8, taken: bool, ip: u64) -> bool {
        let tnt = self.core.tnt << results | u64::from(taken) & u64::from(results);
        if tnt >= self.config.tnt_full {
            return false;
        }
        self.core.tnt = tnt;
        self.core.ip = ip;
        true
    }

    /// A conditional branch that may also fill a short TNT, if that is all it does.
    #[inline(always)]
    pub fn conditional_quietly(&mut self, taken: bool, ip: u64) -> bool {
        if self.quietly(1, taken, ip) {
            return true;
        }
        let tnt = self.core.tnt << 1 | u64::from(taken);
        let (word, size) = short_tnt(tnt);
        let short = tnt < 128 && self.config.parameters.tnt_form != TntForm::Long;
        if !short || !self.buffer.has_room() || self.buffer.position() + size >= self.attention {
            return false;
        }
        self.buffer.put((word, size));
        self.core.tnt = 1;
        self.core.ip = ip;
        true
    }

    /// The same for a near RET.
    #[inline(always)]
    pub fn ret_quietly(&mut self, target: u64) -> bool {
        let quiet = self.ret_stack.top() == Some(target) && self.quietly(1, true, target);
        if quiet {
            self.ret_stack.pop();
        }
        quiet
    }

    /// Jcc, J*CXZ or LOOP*: goes on at `target` if `taken`, else at `next_ip`.
    #[inline(always)]
    pub fn conditional(&mut self, next_ip: u64, target: u64, taken: bool) {
        if !self.core.plain {
            return self.filtered_conditional(next_ip, target, taken);
        }
        self.core.ip = if taken { target } else { next_ip };
        if self.result(taken) {
            self.commit();
        }
    }

    /// Direct JMP: the code tells where it goes.
    #[inline(always)]
    pub fn jump(&mut self, target: u64) {
        if self.lands(target, false) && !self.core.plain {
            self.commit();
        }
    }

    /// Direct CALL; with displacement 0 (`target` is `next_ip`) no RET is expected.
    #[inline(always)]
    pub fn call(&mut self, next_ip: u64, target: u64) {
        if self.lands(target, false) {
            if target != next_ip {
                self.ret_stack.push(next_ip);
            }
            if !self.core.plain {
                self.commit();
            }
        }
    }

    /// Indirect JMP.
    #[inline(always)]
    pub fn indirect_jump(&mut self, target: u64) {
        if self.lands(target, false) {
            self.target(target);
        }
    }

    /// Indirect CALL.
    #[inline(always)]
    pub fn indirect_call(&mut self, next_ip: u64, target: u64) {
        if self.lands(target, false) {
            self.ret_stack.push(next_ip);
            self.target(target);
        }
    }

    /// Near RET: a taken result if it returns from a CALL that the decoder knows, else TIP.
    #[inline(always)]
    pub fn ret(&mut self, target: u64) {
        if !self.lands(target, false) {
            return;
        }
        if self.ret_stack.pop() == Some(target) {
            self.result(true);
            self.commit();
        } else {
            self.target(target);
        }
    }

    /// A taken branch ends at `target`. True if its ordinary packet follows: PacketEn was and stays 1.
    #[inline(always)]
    fn lands(&mut self, target: u64, conditional: bool) -> bool {
        self.core.ip = target;
        if self.core.plain {
            return true;
        }
        if self.core.context_en && !self.core.filter_en && self.ranges.far_from(target) {
            self.commit();
            return false;
        }
        self.lands_filtered(target, conditional)
    }

    #[inline(never)]
    fn filtered_conditional(&mut self, next_ip: u64, target: u64, taken: bool) {
        if !taken {
            self.core.ip = next_ip;
            if !self.core.packet_en {
                return;
            }
            self.result(false);
        } else if self.lands(target, true) {
            self.result(true);
        } else {
            return;
        }
        self.commit();
    }

    #[inline(never)]
    fn lands_filtered(&mut self, target: u64, conditional: bool) -> bool {
        if !self.core.trigger_en || !self.core.context_en {
            return false;
        }
        let was = self.core.packet_en;
        if !self.ranges.used() {
            return was;
        }
        let stops = self.steer(target);
        let now = self.core.packet_en;
        if was && now {
            return true;
        }
        if was {
            let hidden = conditional || (stops && !self.config.parameters.tracestop_pgd_target);
            self.flush_tnt();
            self.eligible();
            self.pgd((!hidden).then_some(target));
        } else if now {
            self.eligible();
            self.pge(target);
        }
        if stops {
            self.trace_stop();
        }
        self.commit();
        false
    }

    /// One more result for the TNT buffer; true if that makes packets.
    #[inline(always)]
    fn result(&mut self, taken: bool) -> bool {
        if self.config.dis_tnt {
            return false;
        }
        let timed = self.core.tnt == 1 && self.core.cycle >= self.core.cyc_due;
        if timed {
            self.eligible();
        }
        self.core.tnt = self.core.tnt << 1 | u64::from(taken);
        if self.core.tnt >= self.config.tnt_full {
            self.flush_tnt();
            return true;
        }
        timed
    }

    #[inline(always)]
    fn target(&mut self, target: u64) {
        self.flush_tnt();
        self.eligible();
        self.tip(target);
        self.commit();
    }
}
