//! Far transfers and events: what leaves and re-enters user mode (section 33.7; Tables 33-55 and 33-56).

use crate::unit::Unit;

/// Where the kernel is does not matter: it is never traced.
const KERNEL: u64 = 0;

impl Unit {
    /// Far JMP, CALL or RET, or IRET, that stays in user mode.
    pub fn far(&mut self, target: u64) {
        self.transfer(target, self.core.user, None);
    }

    /// SYSCALL or SYSENTER.
    pub fn syscall(&mut self) {
        self.transfer(KERNEL, false, None);
    }

    /// The kernel lets user code go on at `target`.
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

    /// `event_ip` is what FUP carries; a branch of its own has none.
    fn transfer(&mut self, target: u64, user: bool, event_ip: Option<u64>) {
        self.core.user = user;
        self.core.ip = target;
        if !self.core.trigger_en {
            return;
        }
        let was = self.core.packet_en;
        let stops = self.steer(target);
        let now = self.core.packet_en;
        if was {
            self.flush_tnt();
            if let Some(ip) = event_ip {
                self.eligible();
                self.fup(ip);
            }
        }
        if was && now && !self.core.mode_sent {
            self.eligible();
            self.mode_exec();
        }
        if was || now {
            self.eligible();
        }
        if was && now {
            self.tip(target);
        } else if was {
            let hidden = stops && !self.config.parameters.tracestop_pgd_target;
            let shown = self.core.context_en && !hidden;
            self.pgd(shown.then_some(target));
        } else if now {
            self.pge(target);
        }
        if stops {
            self.trace_stop();
        }
        self.commit();
    }
}
