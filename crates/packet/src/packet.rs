//! One packet as a value.

/// One packet: where it is and what it says. Its bytes are `data[offset..offset + length]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Offset of its first byte in the scanned slice.
    pub offset: usize,
    /// Bytes, header included: 1 to 16.
    pub length: usize,
    pub kind: PacketKind,
}

impl Packet {
    /// Offset of the byte after the packet.
    pub fn end(&self) -> usize {
        self.offset + self.length
    }
}

/// IP payload of TIP, TIP.PGE, TIP.PGD and FUP, not yet joined with LastIP (Table 33-18).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ip {
    /// 0, 1, 2, 3, 4 or 6; 0 means that the IP is suppressed.
    pub ip_bytes: u8,
    /// The 0, 2, 4, 6, 6 or 8 payload bytes, zero-extended.
    pub payload: u64,
}

impl Ip {
    /// True if the packet carries no IP (IPBytes 0).
    pub fn suppressed(&self) -> bool {
        self.ip_bytes == 0
    }
}

/// Branch results of a short or a long TNT. Result i (0 = oldest) is bit `count - 1 - i` of `bits`; 1 = taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tnt {
    /// Number of results: 1..=6 in a short TNT, 1..=47 in a long one.
    pub count: u8,
    pub bits: u64,
}

impl Tnt {
    /// Result number `index`, 0 being the oldest; `None` past the last.
    pub fn get(&self, index: u8) -> Option<bool> {
        (index < self.count).then(|| self.bits >> (self.count - 1 - index) & 1 == 1)
    }
}

/// What a packet says: one variant a packet of section 33.4.2, fields as they are on the wire (addresses scaled).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketKind {
    Pad,
    /// Short TNT.
    Tnt(Tnt),
    /// Long TNT.
    Tnt64(Tnt),
    Tip(Ip),
    TipPge(Ip),
    TipPgd(Ip),
    Fup(Ip),
    /// `cr3` holds `CR3[51:5]` in place.
    Pip {
        nr: bool,
        cr3: u64,
    },
    /// `csl` is CS.L and LMA, `iflag` is RFLAGS.IF.
    ModeExec {
        csl: bool,
        csd: bool,
        iflag: bool,
    },
    ModeTsx {
        in_tx: bool,
        tx_abort: bool,
    },
    TraceStop,
    /// Core:bus ratio.
    Cbr {
        ratio: u8,
    },
    /// `TSC[55:0]`.
    Tsc {
        tsc: u64,
    },
    /// `ART[N+7:N]`.
    Mtc {
        ctc: u8,
    },
    /// `ART[15:0]`, and TSC ticks since the last crystal edge (9 bits).
    Tma {
        ctc: u16,
        fast_counter: u16,
    },
    /// Core cycles since the last CYC.
    Cyc {
        cycles: u64,
    },
    /// VMCS pointer, bits 51:12 in place.
    Vmcs {
        pointer: u64,
    },
    Ovf,
    Psb,
    PsbEnd,
    Mnt {
        payload: u64,
    },
    /// `payload_bytes`: 0 = 4 bytes, 1 = 8 bytes. `ip`: a FUP follows.
    Ptw {
        ip: bool,
        payload_bytes: u8,
        payload: u64,
    },
    /// `ip`: a FUP follows.
    ExStop {
        ip: bool,
    },
    Mwait {
        hints: u8,
        ext: u8,
    },
    /// C-states in MWAIT encoding.
    Pwre {
        hw: bool,
        state: u8,
        sub_state: u8,
    },
    /// `wake`: bit 0 interrupt, 1 timer deadline, 2 store to the monitored address, 3 hardware autonomous.
    Pwrx {
        last: u8,
        deepest: u8,
        wake: u8,
    },
    /// `sz`: true = 4-byte items, false = 8-byte items.
    Bbp {
        sz: bool,
        kind: u8,
    },
    Bip {
        id: u8,
        sz: bool,
        payload: u64,
    },
    /// `ip`: a FUP follows.
    Bep {
        ip: bool,
    },
    /// `ip`: a FUP of its own follows.
    Cfe {
        ip: bool,
        kind: u8,
        vector: u8,
    },
    Evd {
        kind: u8,
        payload: u64,
    },
    /// A trigger of a processor later than the chapter. `ip`: a FUP of its own follows; `icnt`: so many instructions
    /// after the last packet that told where the program was.
    Trig {
        ip: bool,
        mult: bool,
        trbv: u8,
        icnt: Option<u16>,
    },
}
