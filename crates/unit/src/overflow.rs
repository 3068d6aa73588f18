//! Internal buffer overflow (sections 33.3.8 and 33.4.2.16), begun and resolved between two events: what happened since
//! the last one is not known, and no packet tells of it.

use crate::encode::OVF;
use crate::unit::Unit;

impl Unit {
    /// Packets were lost. By now the processor is in user mode before the instruction at `ip`, or in the kernel.
    ///
    /// OVF follows, a CYC ahead of it, and with PacketEn=1 a FUP. Results that wait are lost, and nothing is compressed
    /// against what came before. A mode that no packet may have told makes a PSB+ follow; a TraceStop condition that
    /// was met meanwhile shows after the OVF.
    pub fn overflow(&mut self, ip: Option<u64>) {
        self.core.user = ip.is_some();
        self.core.ip = ip.unwrap_or(0);
        if !self.core.trigger_en {
            return;
        }
        let mode_told = self.core.mode_sent;
        self.core.tnt = 1;
        self.ret_stack.clear();
        self.core.last_ip_known = false;
        if self.steer(self.core.ip) {
            self.core.stopped = true;
            self.trigger_off();
            self.buffer.put(OVF);
            self.put_trace_stop();
        } else {
            self.resolve(mode_told);
        }
        self.write();
        self.settle();
        self.aim();
    }

    fn resolve(&mut self, mode_told: bool) {
        if self.config.cyc_en {
            self.core.cyc_due = self.core.cyc_base + self.config.cyc_gap;
        }
        self.schedule();
        self.eligible();
        self.buffer.put(OVF);
        let packet_en = self.core.packet_en;
        self.core.mode_sent = packet_en && mode_told;
        if packet_en {
            self.fup(self.core.ip);
            if !mode_told {
                self.put_psb();
            }
        }
    }
}
