//! Far transfers and events, which leave and enter user mode (section 33.7; Tables 33-55 and 33-56).

use crate::unit::Unit;

/// The kernel is never traced, so its IP does not matter.
const KERNEL: u64 = 0;

impl Unit {
    /// Far JMP, CALL, RET or IRET that stays in user mode.
    pub fn far(&mut self, target: u64) {
        self.transfer(target, self.core.user, None);
    }

    /// SYSCALL or SYSENTER.
    pub fn syscall(&mut self) {
        self.transfer(KERNEL, false, None);
    }

    /// The kernel returns to user code at `target`.
    pub fn resume(&mut self, target: u64) {
        self.transfer(target, true, None);
    }

    /// An interrupt or a trap before the instruction at `ip`.
    pub fn interrupt(&mut self, ip: u64) {
        self.transfer(KERNEL, false, Some(ip));
    }

    /// An exception at the instruction at `ip`.
    pub fn exception(&mut self, ip: u64) {
        self.transfer(KERNEL, false, Some(ip));
    }

    /// INT n, INT3, INT1 or INTO at `ip`.
    pub fn software_interrupt(&mut self, ip: u64) {
        self.transfer(KERNEL, false, Some(ip));
    }

    /// Handles a transfer. `event_ip` is the IP of the FUP; a far branch has none.
    fn transfer(&mut self, target: u64, user: bool, event_ip: Option<u64>) {
        self.core.user = user;
        self.core.ip = target;
        if !self.core.trigger_en {
            return;
        }
        let was = self.core.packet_en;
        let stops = self.update_enables(target);
        let now = self.core.packet_en;
        if was {
            self.flush_tnt();
            if let Some(ip) = event_ip {
                self.put_cyc_if_due();
                self.put_fup(ip);
            }
        }
        if was && now && !self.core.mode_sent {
            self.put_cyc_if_due();
            self.put_mode_exec();
        }
        if was || now {
            self.put_cyc_if_due();
        }
        if was && now {
            self.put_tip(target);
        } else if was {
            let hidden = stops && !self.config.parameters.tracestop_pgd_target;
            let shown = self.core.context_en && !hidden;
            self.put_tip_pgd(shown.then_some(target));
        } else if now {
            self.put_tip_pge(target);
        }
        if stops {
            self.trace_stop();
        }
        self.commit();
    }
}
