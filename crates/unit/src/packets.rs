//! The packets of control flow, and PSB+ (sections 33.4.2.1 to 33.4.2.9, 33.3.7 and 33.4.2.17).

use rtit_packet::PSB;

use crate::encode::{
    long_tnt, short_tnt, FUP, MODE_EXEC_64, MODE_TSX, PGD_SUPPRESSED, PSBEND, TIP, TIP_PGD,
    TIP_PGE, TRACE_STOP,
};
use crate::settings::{PsbPart, TntForm};
use crate::unit::Unit;

impl Unit {
    /// Send what waits in the TNT buffer.
    #[inline(always)]
    pub(crate) fn flush_tnt(&mut self) {
        let tnt = self.core.tnt;
        if tnt == 1 {
            return;
        }
        self.core.tnt = 1;
        if tnt < 128 && self.config.parameters.tnt_form != TntForm::Long {
            self.buffer.put(short_tnt(tnt));
        } else {
            self.buffer.put(long_tnt(tnt));
        }
    }

    #[inline(always)]
    pub(crate) fn tip(&mut self, target: u64) {
        self.ip_packet(TIP, target);
    }

    /// TIP.PGE, after MODE.Exec if the decoder cannot know the mode; compressed RETs need CALLs from here on.
    pub(crate) fn pge(&mut self, ip: u64) {
        if !self.config.parameters.modeexec_suppress || !self.core.mode_sent {
            self.mode_exec();
        }
        self.ret_stack.clear();
        self.ip_packet(TIP_PGE, ip);
    }

    /// TIP.PGD; without a target its IP is suppressed.
    pub(crate) fn pgd(&mut self, target: Option<u64>) {
        self.ret_stack.clear();
        match target {
            None => self.buffer.put(PGD_SUPPRESSED),
            Some(ip) => self.ip_packet(TIP_PGD, ip),
        }
    }

    pub(crate) fn fup(&mut self, ip: u64) {
        self.ip_packet(FUP, ip);
    }

    pub(crate) fn mode_exec(&mut self) {
        self.buffer.put(MODE_EXEC_64);
        self.core.mode_sent = true;
    }

    pub(crate) fn put_trace_stop(&mut self) {
        self.buffer.put(TRACE_STOP);
    }

    #[inline(always)]
    fn ip_packet(&mut self, header: u8, ip: u64) {
        let core = &mut self.core;
        let differs = match core.last_ip_known {
            true => ip ^ core.last_ip,
            false => u64::MAX,
        };
        let (bits, size) = self.config.ip_forms.of(ip, differs);
        self.buffer.put_ip(header | bits, ip, size);
        core.last_ip = ip;
        core.last_ip_known = true;
    }

    /// Put a PSB+; returns its bytes. Everything that compression relies on is forgotten. Only between two events: its
    /// FUP carries the next instruction.
    pub(crate) fn insert_psb(&mut self) -> usize {
        self.flush_tnt();
        let parts = self.config.parameters.psb_plus_order;
        let timed = |part: &PsbPart| !matches!(part, PsbPart::Cbr | PsbPart::Fup);
        if parts.iter().any(|part| timed(part) && self.applies(*part)) {
            self.eligible();
        }
        let before = self.buffer.position();
        self.buffer.put_slice(&PSB);
        self.psbs += 1;
        self.core.last_ip = 0;
        self.core.last_ip_known = self.config.parameters.compress_after_psb;
        self.ret_stack.clear();
        self.core.mode_sent = false;
        for part in parts {
            if !self.applies(part) {
                continue;
            }
            match part {
                PsbPart::Tsc => self.timestamp(),
                PsbPart::Pip => {}
                PsbPart::Cbr => self.cbr(),
                PsbPart::ModeTsx => self.buffer.put(MODE_TSX),
                PsbPart::ModeExec => self.mode_exec(),
                PsbPart::Fup => self.fup(self.core.ip),
            }
        }
        self.buffer.put(PSBEND);
        self.buffer.position() - before
    }

    fn applies(&self, part: PsbPart) -> bool {
        match part {
            PsbPart::Tsc => self.config.tsc_en,
            // Only where the kernel is traced.
            PsbPart::Pip => false,
            PsbPart::Cbr => true,
            PsbPart::ModeTsx => self.core.context_en && self.config.branch_en,
            PsbPart::ModeExec | PsbPart::Fup => self.core.packet_en,
        }
    }
}
