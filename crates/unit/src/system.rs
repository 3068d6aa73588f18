//! The events of a whole system: transfers among privilege levels and code widths, MOV CR3, RFLAGS.IF, and the packets
//! of event trace (sections 33.2.4, 33.2.5.2, 33.4.2.7, 33.4.2.8, 33.4.2.29, 33.4.2.30; Tables 33-55 to 33-59).

use crate::packet_bytes::{cfe_packet, page_fault_evd};
use crate::unit::TraceUnit;

/// The state of the processor that an event can change, except CR3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessorState {
    /// CPL is 3; otherwise 0.
    pub user: bool,
    pub code: CodeWidth,
    /// RFLAGS.IF; matters for event trace only.
    pub interrupt_flag: bool,
}

/// CS.L & LMA and CS.D, as bits 0 and 1 of MODE.Exec (Table 33-26).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CodeWidth {
    Bits16 = 0,
    Bits64 = 1,
    Bits32 = 2,
}

/// What event trace reports of a transfer (Table 33-50).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventReport {
    /// An interrupt or exception. `page_fault`: the faulting address, of vector 14.
    Interrupt { vector: u8, page_fault: Option<u64> },
    /// IRET at `ip`.
    Iret { ip: u64 },
    /// A system management interrupt.
    Smi,
    /// The return from system management mode.
    Rsm,
}

impl EventReport {
    fn cfe_type(self) -> u8 {
        match self {
            EventReport::Interrupt { .. } => 1,
            EventReport::Iret { .. } => 2,
            EventReport::Smi => 3,
            EventReport::Rsm => 4,
        }
    }
}

const INTERRUPT_FLAG: u8 = 4;

impl TraceUnit {
    pub(crate) fn processor_state(&self) -> ProcessorState {
        ProcessorState {
            user: self.core.user,
            code: match self.core.mode & 3 {
                0 => CodeWidth::Bits16,
                2 => CodeWidth::Bits32,
                _ => CodeWidth::Bits64,
            },
            interrupt_flag: self.core.mode & INTERRUPT_FLAG != 0,
        }
    }

    fn set_processor_state(&mut self, state: ProcessorState) {
        self.core.user = state.user;
        let flag = match state.interrupt_flag && self.config.event_en {
            true => INTERRUPT_FLAG,
            false => 0,
        };
        self.core.mode = state.code as u8 | flag;
    }

    /// Sets the state in which tracing is enabled. Call it while TraceEn is clear.
    pub fn start_in_state(&mut self, ip: u64, state: ProcessorState, cr3: u64) {
        self.set_processor_state(state);
        self.core.cr3 = cr3;
        self.core.ip = ip;
    }

    /// Transfers control to `target`, with `state` afterwards: a far branch, or with `event_ip` an interrupt or
    /// exception, before the instruction at that address. `report`: for event trace.
    pub fn transfer(
        &mut self,
        target: u64,
        state: ProcessorState,
        event_ip: Option<u64>,
        report: Option<EventReport>,
    ) {
        self.set_processor_state(state);
        self.core.ip = target;
        if !self.core.trigger_en {
            return;
        }
        let (was, was_context) = (self.core.packet_en, self.core.context_en);
        let stops = self.update_enables(target);
        let now = self.core.packet_en;
        if was {
            self.flush_tnt();
            if event_ip.is_some() {
                self.put_cyc_if_due();
            }
        }
        if let Some(report) = report {
            self.put_event_report(report, was, was_context, event_ip);
        }
        if let (true, Some(ip)) = (was, event_ip) {
            self.put_fup(ip);
        }
        if was && now && self.is_mode_exec_due() {
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
            self.stop_trace();
        }
        self.finish_event();
    }

    /// Emits EVD and CFE, as far as ContextEn before and after the event allows (Table 33-49), and a FUP if no other
    /// packet has the IP. An EVD reports the context before the event.
    pub(crate) fn put_event_report(
        &mut self,
        report: EventReport,
        was: bool,
        was_context: bool,
        event_ip: Option<u64>,
    ) {
        let page_fault = match report {
            EventReport::Interrupt { page_fault, .. } => page_fault,
            _ => None,
        };
        if !self.config.event_en || !(was_context || self.core.context_en) {
            return;
        }
        self.flush_tnt();
        if was || self.core.packet_en {
            self.put_cyc_if_due();
        }
        if let (true, Some(address)) = (was_context, page_fault) {
            self.buffer.put_bytes(&page_fault_evd(address));
        }
        let (vector, ip) = match report {
            EventReport::Interrupt { vector, .. } => (vector, event_ip),
            EventReport::Iret { ip } => (0, Some(ip)),
            EventReport::Smi => (0, event_ip),
            EventReport::Rsm => (0, None),
        };
        let alone = was_context && ip.is_some() && !(was && event_ip.is_some());
        self.buffer
            .put_packet(cfe_packet(alone, report.cfe_type(), vector));
        if let (true, Some(ip)) = (alone, ip) {
            self.put_fup(ip);
        }
    }

    /// MOV to CR3 before the instruction at `next_ip`.
    pub fn mov_cr3(&mut self, next_ip: u64, cr3: u64) {
        self.core.cr3 = cr3;
        self.core.ip = next_ip;
        if !self.core.trigger_en {
            return;
        }
        let (was, was_context) = (self.core.packet_en, self.core.context_en);
        let filter_en = self.core.filter_en;
        let stops = self.update_enables(next_ip) && !was_context;
        if was_context && self.core.context_en {
            // FilterEn is evaluated at branches and where execution enters the context.
            self.core.filter_en = filter_en;
            self.derive_packet_en();
        }
        self.flush_tnt();
        if self.core.context_en && self.config.os {
            self.put_cyc_if_due();
            self.put_pip();
        }
        if was != self.core.packet_en {
            self.put_cyc_if_due();
            if was {
                self.put_tip_pgd(None);
            } else {
                self.put_tip_pge(next_ip);
            }
        }
        if stops {
            self.stop_trace();
        }
        self.finish_event();
    }

    /// Enters system management mode before the instruction at `ip`: clears TraceEn (section 33.2.9.3).
    pub fn enter_smm(&mut self, ip: u64) {
        self.core.ip = ip;
        if self.core.trigger_en {
            let (was, was_context) = (self.core.packet_en, self.core.context_en);
            self.put_event_report(EventReport::Smi, was, was_context, Some(ip));
        }
        self.disable_tracing();
    }

    /// Returns from system management mode, in which TraceEn was clear, to `ip`. Call it if TraceEn was set before.
    pub fn leave_smm(&mut self, ip: u64, state: ProcessorState, cr3: u64) {
        self.start_in_state(ip, state, cr3);
        self.enable_tracing_after(Some(EventReport::Rsm));
    }

    /// The instruction at `ip`, which is no branch, set RFLAGS.IF. The next one is at `next_ip`.
    pub fn set_interrupt_flag(&mut self, ip: u64, next_ip: u64, interrupt_flag: bool) {
        let before = self.core.mode;
        self.set_processor_state(ProcessorState {
            interrupt_flag,
            ..self.processor_state()
        });
        self.core.ip = next_ip;
        let enabled = self.core.trigger_en && self.core.context_en && self.core.filter_en;
        if enabled && before != self.core.mode {
            self.flush_tnt();
            self.put_cyc_if_due();
            self.put_mode_exec();
            self.put_fup(ip);
            self.finish_event();
        }
    }

    /// Packets were lost. The processor is now in `state` before the instruction at `ip`.
    pub fn lose_packets_until(&mut self, ip: u64, state: ProcessorState, cr3: u64) {
        self.set_processor_state(state);
        self.core.cr3 = cr3;
        // A PSB+ after the overflow reports the mode and CR3.
        self.core.mode_sent = false;
        self.lose_packets(ip);
    }
}
