//! Control-flow packets and PSB+ (sections 33.4.2.1 to 33.4.2.9, 33.3.7 and 33.4.2.17). `compression` has the rules of
//! compression.

use rtit_packet::PSB;

use crate::packet_bytes::{
    long_tnt, mode_exec_packet, pip_packet, short_tnt, FUP, MODE_TSX, PGD_SUPPRESSED, PSBEND, TIP,
    TIP_PGD, TIP_PGE, TRACE_STOP,
};
use crate::settings::{PsbPart, TntForm};
use crate::unit::TraceUnit;

const CR3_51_12: u64 = 0x000f_ffff_ffff_f000;

impl TraceUnit {
    /// Emits the pending TNT bits.
    #[inline(always)]
    pub(crate) fn flush_tnt(&mut self) {
        let tnt = self.core.tnt;
        if tnt == 1 {
            return;
        }
        self.core.tnt = 1;
        if tnt < 128 && self.config.parameters.tnt_form != TntForm::Long {
            self.buffer.put_packet(short_tnt(tnt));
        } else {
            self.buffer.put_packet(long_tnt(tnt));
        }
    }

    #[inline(always)]
    pub(crate) fn put_tip(&mut self, target: u64) {
        self.put_packet_with_ip(TIP, target);
    }

    /// Emits TIP.PGE, after a MODE.Exec if the decoder may not know the mode. Only CALLs after it are remembered for
    /// RETs.
    pub(crate) fn put_tip_pge(&mut self, ip: u64) {
        if !self.config.parameters.modeexec_suppress || self.is_mode_exec_due() {
            self.put_mode_exec();
        }
        self.ret_stack.clear();
        self.put_packet_with_ip(TIP_PGE, ip);
    }

    /// Emits TIP.PGD. Without a target its IP is suppressed.
    pub(crate) fn put_tip_pgd(&mut self, target: Option<u64>) {
        self.ret_stack.clear();
        match target {
            None => self.buffer.put_packet(PGD_SUPPRESSED),
            Some(ip) => self.put_packet_with_ip(TIP_PGD, ip),
        }
    }

    pub(crate) fn put_fup(&mut self, ip: u64) {
        self.put_packet_with_ip(FUP, ip);
    }

    pub(crate) fn put_mode_exec(&mut self) {
        self.buffer.put_packet(mode_exec_packet(self.core.mode));
        self.core.mode_sent = true;
        self.core.sent_mode = self.core.mode;
    }

    /// Returns whether the decoder may not know the mode.
    pub(crate) fn is_mode_exec_due(&self) -> bool {
        !self.core.mode_sent || self.core.sent_mode != self.core.mode
    }

    /// Emits PIP with bits 51:12 of CR3 (section 33.4.2.7).
    pub(crate) fn put_pip(&mut self) {
        self.buffer
            .put_packet(pip_packet(self.core.cr3 & CR3_51_12));
    }

    pub(crate) fn put_trace_stop(&mut self) {
        self.buffer.put_packet(TRACE_STOP);
    }

    #[inline(always)]
    fn put_packet_with_ip(&mut self, header: u8, ip: u64) {
        let core = &mut self.core;
        let differs = match core.last_ip_known {
            true => ip ^ core.last_ip,
            false => u64::MAX,
        };
        let (bits, size) = self.config.ip_table.encoding_for_ip(ip, differs);
        self.buffer.put_ip_packet(header | bits, ip, size);
        core.last_ip = ip;
        core.last_ip_known = true;
    }

    /// Emits a PSB+, which resets all compression, and returns its size. Call it only between two events: its FUP
    /// carries the next instruction.
    pub(crate) fn put_psb_plus(&mut self) -> usize {
        self.flush_tnt();
        let parts = self.config.parameters.psb_plus_order;
        let timed = |part: &PsbPart| !matches!(part, PsbPart::Cbr | PsbPart::Fup);
        if parts
            .iter()
            .any(|part| timed(part) && self.psb_part_applies(*part))
        {
            self.put_cyc_if_due();
        }
        let before = self.buffer.position();
        self.buffer.put_bytes(&PSB);
        self.psbs += 1;
        self.core.last_ip = 0;
        self.core.last_ip_known = self.config.parameters.compress_after_psb;
        self.ret_stack.clear();
        self.core.mode_sent = false;
        for part in parts {
            if !self.psb_part_applies(part) {
                continue;
            }
            match part {
                PsbPart::Tsc => self.put_tsc_and_tma(),
                PsbPart::Pip => self.put_pip(),
                PsbPart::Cbr => self.put_cbr(),
                PsbPart::ModeTsx => self.buffer.put_packet(MODE_TSX),
                PsbPart::ModeExec => self.put_mode_exec(),
                PsbPart::Fup => self.put_fup(self.core.ip),
            }
        }
        self.buffer.put_packet(PSBEND);
        self.buffer.position() - before
    }

    fn psb_part_applies(&self, part: PsbPart) -> bool {
        match part {
            PsbPart::Tsc => self.config.tsc_en,
            PsbPart::Pip => self.core.context_en && self.config.os,
            PsbPart::Cbr => true,
            PsbPart::ModeTsx => self.core.context_en && self.config.branch_en,
            PsbPart::ModeExec | PsbPart::Fup => self.core.packet_en,
        }
    }
}
