//! Events: everything that a stream reports beside instructions. The numbers of [`EventKind`] are those of the `kind`
//! column.

named_enum! {
    /// The kind of an event. The numbers are those of the `kind` column.
    EventKind {
        /// TIP.PGE: tracing continues at `ip`.
        Enabled = 1, "enabled";
        /// TIP.PGD at a branch: `ip` = the last instruction, `value` = where it went, 0 if not known.
        Disabled = 2, "disabled";
        /// FUP and TIP: struck before `ip`, went on at `value`.
        Async = 3, "async";
        /// FUP and TIP.PGD: struck before `ip`; `value` = where it went, 0 if not known.
        AsyncDisabled = 4, "async disabled";
        /// OVF: the processor lost packets.
        Overflow = 5, "overflow";
        /// TraceStop: `ip` = where TIP.PGD said that tracing ended, or else the last known; 0 if not known.
        Stopped = 6, "stopped";
        /// Decoding went on after a loss, at `ip`.
        Resumed = 7, "resumed";
        /// An error: `ip` = the bad value, `value` = its class (`ErrorClass`). The ledger has the rest.
        Error = 8, "error";
        /// PSB; `ip` = the IP of its FUP, 0 if tracing is off.
        Psb = 9, "psb";
        /// PIP: `value` = CR3, bit 0 = NR.
        Paging = 10, "paging";
        /// VMCS: `value` = the pointer.
        Vmcs = 11, "vmcs";
        /// MODE.Exec: `value` bit 0 CS.L, bit 1 CS.D, bit 2 IF.
        ModeExec = 12, "mode.exec";
        /// MODE.TSX: `value` bit 0 InTX, bit 1 TXAbort; `ip`: from where on. While tracing is off the last one alone is
        /// reported, when it is on again.
        ModeTsx = 13, "mode.tsx";
        /// PTW: `value` = the operand; `ip` = the PTWRITE, 0 if not known.
        PtWrite = 14, "ptwrite";
        /// EXSTOP.
        ExStop = 15, "exstop";
        /// MWAIT: `ip`: of its EXSTOP, 0 if not known; `value` = hints, extensions << 32.
        Mwait = 16, "mwait";
        /// PWRE: `ip`: of the EXSTOP, 0 if not known; `value` = sub C-state, C-state << 4, HW << 8.
        Pwre = 17, "pwre";
        /// PWRX: `ip`: that of its PWRE; `value` = deepest, last << 4, wake reason << 8.
        Pwrx = 18, "pwrx";
        /// CBR: `value` = the ratio.
        Cbr = 19, "cbr";
        /// CFE: `value` = type, vector << 8.
        Cfe = 20, "cfe";
        /// EVD: `ip` = type (not an address), `value` = the payload.
        Evd = 21, "evd";
        /// BBP: `ip`: that of the BEP; `value` = type, SZ << 8.
        BlockBegin = 22, "block begin";
        /// BIP: `ip` = ID (not an address), `value` = the payload.
        BlockItem = 23, "block item";
        /// BEP.
        BlockEnd = 24, "block end";
        /// MNT: `value` = the payload.
        Mnt = 25, "mnt";
        /// TRIG of processors later than the chapter: `value` = TRBV, MULT << 8, ICNTV << 9, ICNT << 16; `ip`: before
        /// which instruction, 0 if not known.
        Trig = 26, "trig";
    }
}

/// One event. `time` is the TSC estimate, a lower bound; `offset` that of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    pub kind: EventKind,
    pub ip: u64,
    pub value: u64,
    pub time: u64,
    pub offset: u64,
}

impl Event {
    /// Returns CR3 from here on; `None` if the event does not change it.
    pub fn cr3(&self) -> Option<u64> {
        (self.kind == EventKind::Paging).then_some(self.value & !1)
    }

    /// Returns whether execution is in a transaction from here on; `None` if the event does not change that.
    pub fn is_in_transaction(&self) -> Option<bool> {
        (self.kind == EventKind::ModeTsx).then_some(self.value & 1 != 0)
    }
}
