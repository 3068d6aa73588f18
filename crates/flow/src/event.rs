//! Events: what a stream reports beside instructions. The numbers of [`EventKind`] are those of the `kind` column.

/// What happened. The numbers are those of the `kind` column.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// TIP.PGE: tracing goes on at `ip`.
    Enabled = 1,
    /// TIP.PGD at a branch: `ip` = the last instruction, `value` = where it went, 0 if not known.
    Disabled = 2,
    /// FUP and TIP: struck before `ip`, went on at `value`.
    Async = 3,
    /// FUP and TIP.PGD: struck before `ip`; `value` = where it went, 0 if not known.
    AsyncDisabled = 4,
    /// OVF: the processor lost packets.
    Overflow = 5,
    /// TraceStop: `ip` = where TIP.PGD said that tracing ended, or else the last known; 0 if not known.
    Stopped = 6,
    /// Decoding went on after a loss, at `ip`.
    Resumed = 7,
    /// An error: `ip` = the bad value, `value` = its class (`ErrorClass`). The ledger has the rest.
    Error = 8,
    /// PSB; `ip` = the IP of its FUP, 0 if tracing is off.
    Psb = 9,
    /// PIP: `value` = CR3, bit 0 = NR.
    Paging = 10,
    /// VMCS: `value` = the pointer.
    Vmcs = 11,
    /// MODE.Exec: `value` bit 0 CS.L, bit 1 CS.D, bit 2 IF.
    ModeExec = 12,
    /// MODE.TSX: `value` bit 0 InTX, bit 1 TXAbort; `ip`: from where on. While tracing is off the last one alone is
    /// told, when it is on again.
    ModeTsx = 13,
    /// PTW: `value` = the operand; `ip` = the PTWRITE, 0 if not known.
    PtWrite = 14,
    /// EXSTOP.
    ExStop = 15,
    /// MWAIT: `ip`: of its EXSTOP, 0 if not known; `value` = hints, extensions << 32.
    Mwait = 16,
    /// PWRE: `ip`: of the EXSTOP, 0 if not known; `value` = sub C-state, C-state << 4, HW << 8.
    Pwre = 17,
    /// PWRX: `ip`: that of its PWRE; `value` = deepest, last << 4, wake reason << 8.
    Pwrx = 18,
    /// CBR: `value` = the ratio.
    Cbr = 19,
    /// CFE: `value` = type, vector << 8.
    Cfe = 20,
    /// EVD: `ip` = type (not an address), `value` = the payload.
    Evd = 21,
    /// BBP: `ip`: that of the BEP; `value` = type, SZ << 8.
    BlockBegin = 22,
    /// BIP: `ip` = ID (not an address), `value` = the payload.
    BlockItem = 23,
    /// BEP.
    BlockEnd = 24,
    /// MNT: `value` = the payload.
    Mnt = 25,
    /// TRIG of processors later than the chapter: `value` = TRBV, MULT << 8, ICNTV << 9, ICNT << 16; `ip`: before which
    /// instruction, 0 if not known.
    Trig = 26,
}

impl EventKind {
    pub const ALL: [EventKind; 26] = [
        EventKind::Enabled,
        EventKind::Disabled,
        EventKind::Async,
        EventKind::AsyncDisabled,
        EventKind::Overflow,
        EventKind::Stopped,
        EventKind::Resumed,
        EventKind::Error,
        EventKind::Psb,
        EventKind::Paging,
        EventKind::Vmcs,
        EventKind::ModeExec,
        EventKind::ModeTsx,
        EventKind::PtWrite,
        EventKind::ExStop,
        EventKind::Mwait,
        EventKind::Pwre,
        EventKind::Pwrx,
        EventKind::Cbr,
        EventKind::Cfe,
        EventKind::Evd,
        EventKind::BlockBegin,
        EventKind::BlockItem,
        EventKind::BlockEnd,
        EventKind::Mnt,
        EventKind::Trig,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            EventKind::Enabled => "enabled",
            EventKind::Disabled => "disabled",
            EventKind::Async => "async",
            EventKind::AsyncDisabled => "async disabled",
            EventKind::Overflow => "overflow",
            EventKind::Stopped => "stopped",
            EventKind::Resumed => "resumed",
            EventKind::Error => "error",
            EventKind::Psb => "psb",
            EventKind::Paging => "paging",
            EventKind::Vmcs => "vmcs",
            EventKind::ModeExec => "mode.exec",
            EventKind::ModeTsx => "mode.tsx",
            EventKind::PtWrite => "ptwrite",
            EventKind::ExStop => "exstop",
            EventKind::Mwait => "mwait",
            EventKind::Pwre => "pwre",
            EventKind::Pwrx => "pwrx",
            EventKind::Cbr => "cbr",
            EventKind::Cfe => "cfe",
            EventKind::Evd => "evd",
            EventKind::BlockBegin => "block begin",
            EventKind::BlockItem => "block item",
            EventKind::BlockEnd => "block end",
            EventKind::Mnt => "mnt",
            EventKind::Trig => "trig",
        }
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
    /// Whether the program is in a transaction from here on, if it tells.
    pub fn in_tx(&self) -> Option<bool> {
        (self.kind == EventKind::ModeTsx).then_some(self.value & 1 != 0)
    }
}
