//! One packet as a value, and its names, rows and fields.

use crate::table::{Kind, PacketDeclaration, ROWS};

/// One packet: its position and its contents. Its bytes are `data[offset..offset + length]`.
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
    pub fn end_offset(&self) -> usize {
        self.offset + self.length
    }
}

/// IP payload of TIP, TIP.PGE, TIP.PGD and FUP, not yet joined with LastIP (Table 33-18).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpPayload {
    /// 0, 1, 2, 3, 4 or 6; 0 means that the IP is suppressed.
    pub ip_bytes: u8,
    /// The 0, 2, 4, 6, 6 or 8 payload bytes, zero-extended.
    pub payload: u64,
}

impl IpPayload {
    /// True if the packet carries no IP (IPBytes 0).
    pub fn is_suppressed(&self) -> bool {
        self.ip_bytes == 0
    }
}

/// Branch results of a short or a long TNT. Result i (0 = oldest) is bit `count - 1 - i` of `bits`; 1 = taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TntPayload {
    /// Number of results: 1..=6 in a short TNT, 1..=47 in a long one.
    pub count: u8,
    pub bits: u64,
}

impl TntPayload {
    /// Result number `index`, 0 being the oldest; `None` past the last.
    pub fn result_at(&self, index: u8) -> Option<bool> {
        (index < self.count).then(|| self.bits >> (self.count - 1 - index) & 1 == 1)
    }
}

/// A packet with its fields: one variant for each packet of section 33.4.2, fields as they are on the wire (addresses
/// scaled).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketKind {
    /// PAD.
    Pad,
    /// Short TNT.
    Tnt(TntPayload),
    /// Long TNT.
    Tnt64(TntPayload),
    /// Target of an indirect branch.
    Tip(IpPayload),
    /// TIP.PGE: PacketEn becomes 1.
    TipPge(IpPayload),
    /// TIP.PGD: PacketEn becomes 0.
    TipPgd(IpPayload),
    /// FUP: the IP of an event, or of the packet before.
    Fup(IpPayload),
    /// `cr3` holds `CR3[51:5]` in place.
    Pip { nr: bool, cr3: u64 },
    /// `csl` is CS.L and LMA, `iflag` is RFLAGS.IF.
    ModeExec { csl: bool, csd: bool, iflag: bool },
    /// A transaction began, ended, or was aborted.
    ModeTsx { in_tx: bool, tx_abort: bool },
    /// TraceStop.
    TraceStop,
    /// Core:bus ratio.
    Cbr { ratio: u8 },
    /// `TSC[55:0]`.
    Tsc { tsc: u64 },
    /// `ART[N+7:N]`.
    Mtc { ctc: u8 },
    /// `ART[15:0]`, and TSC ticks since the last crystal edge (9 bits).
    Tma { ctc: u16, fast_counter: u16 },
    /// Core cycles since the last CYC.
    Cyc { cycles: u64 },
    /// VMCS pointer, bits 51:12 in place.
    Vmcs { pointer: u64 },
    /// OVF.
    Ovf,
    /// PSB.
    Psb,
    /// PSBEND.
    PsbEnd,
    /// Maintenance: a model-specific payload.
    Mnt { payload: u64 },
    /// `payload_bytes`: 0 = 4 bytes, 1 = 8 bytes. `ip`: a FUP follows.
    Ptw {
        ip: bool,
        payload_bytes: u8,
        payload: u64,
    },
    /// `ip`: a FUP follows.
    ExStop { ip: bool },
    /// Hints and extensions of MWAIT.
    Mwait { hints: u8, ext: u8 },
    /// C-states in MWAIT encoding.
    Pwre { hw: bool, state: u8, sub_state: u8 },
    /// `wake`: bit 0 interrupt, 1 timer deadline, 2 store to the monitored address, 3 hardware autonomous.
    Pwrx { last: u8, deepest: u8, wake: u8 },
    /// `sz`: true = 4-byte items, false = 8-byte items.
    Bbp { sz: bool, kind: u8 },
    /// An item of a block.
    Bip { id: u8, sz: bool, payload: u64 },
    /// `ip`: a FUP follows.
    Bep { ip: bool },
    /// `ip`: a FUP of its own follows.
    Cfe { ip: bool, kind: u8, vector: u8 },
    /// Data of the event of the next CFE.
    Evd { kind: u8, payload: u64 },
    /// A trigger of a processor later than the chapter. `ip`: a FUP of its own follows; `icnt`: number of instructions
    /// since the last packet with an IP.
    Trig {
        ip: bool,
        mult: bool,
        trbv: u8,
        icnt: Option<u16>,
    },
}

impl Kind {
    /// The packet's declaration.
    #[inline]
    pub const fn declaration(self) -> &'static PacketDeclaration {
        &ROWS[self as usize]
    }

    /// The packet's name: as in the chapter (`TIP.PGE`), `TNT.64` for the long TNT.
    #[inline]
    pub const fn name(self) -> &'static str {
        self.declaration().name
    }
}

impl PacketKind {
    /// The kind without its fields.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Pad => Kind::Pad,
            Self::Tnt(_) => Kind::Tnt,
            Self::Tnt64(_) => Kind::Tnt64,
            Self::Tip(_) => Kind::Tip,
            Self::TipPge(_) => Kind::TipPge,
            Self::TipPgd(_) => Kind::TipPgd,
            Self::Fup(_) => Kind::Fup,
            Self::Pip { .. } => Kind::Pip,
            Self::ModeExec { .. } => Kind::ModeExec,
            Self::ModeTsx { .. } => Kind::ModeTsx,
            Self::TraceStop => Kind::TraceStop,
            Self::Cbr { .. } => Kind::Cbr,
            Self::Tsc { .. } => Kind::Tsc,
            Self::Mtc { .. } => Kind::Mtc,
            Self::Tma { .. } => Kind::Tma,
            Self::Cyc { .. } => Kind::Cyc,
            Self::Vmcs { .. } => Kind::Vmcs,
            Self::Ovf => Kind::Ovf,
            Self::Psb => Kind::Psb,
            Self::PsbEnd => Kind::PsbEnd,
            Self::Mnt { .. } => Kind::Mnt,
            Self::Ptw { .. } => Kind::Ptw,
            Self::ExStop { .. } => Kind::ExStop,
            Self::Mwait { .. } => Kind::Mwait,
            Self::Pwre { .. } => Kind::Pwre,
            Self::Pwrx { .. } => Kind::Pwrx,
            Self::Bbp { .. } => Kind::Bbp,
            Self::Bip { .. } => Kind::Bip,
            Self::Bep { .. } => Kind::Bep,
            Self::Cfe { .. } => Kind::Cfe,
            Self::Evd { .. } => Kind::Evd,
            Self::Trig { .. } => Kind::Trig,
        }
    }

    /// The packet's name, as [`Kind::name`].
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// True if a block does not go on after this packet: BEP, OVF and those that Table 33-15 forbids inside.
    pub fn ends_pebs_block(&self) -> bool {
        matches!(self, Self::Bep { .. } | Self::Ovf) || !self.kind().declaration().in_block
    }

    /// Calls `take` with the name and value of each field, in declared order, named as in the Python table; a
    /// suppressed IP payload is left out, and a TNT gives `count` and `bits`.
    pub fn for_each_field(&self, mut take: impl FnMut(&'static str, u64)) {
        match *self {
            Self::Pad | Self::TraceStop | Self::Ovf | Self::Psb | Self::PsbEnd => {}
            Self::Tnt(tnt) | Self::Tnt64(tnt) => {
                take("count", tnt.count.into());
                take("bits", tnt.bits);
            }
            Self::Tip(ip) | Self::TipPge(ip) | Self::TipPgd(ip) | Self::Fup(ip) => {
                take("ip_bytes", ip.ip_bytes.into());
                if !ip.is_suppressed() {
                    take("payload", ip.payload);
                }
            }
            Self::Pip { nr, cr3 } => {
                take("nr", nr.into());
                take("cr3", cr3);
            }
            Self::ModeExec { csl, csd, iflag } => {
                take("csl", csl.into());
                take("csd", csd.into());
                take("iflag", iflag.into());
            }
            Self::ModeTsx { in_tx, tx_abort } => {
                take("in_tx", in_tx.into());
                take("tx_abort", tx_abort.into());
            }
            Self::Cbr { ratio } => take("ratio", ratio.into()),
            Self::Tsc { tsc } => take("tsc", tsc),
            Self::Mtc { ctc } => take("ctc", ctc.into()),
            Self::Tma { ctc, fast_counter } => {
                take("ctc", ctc.into());
                take("fast_counter", fast_counter.into());
            }
            Self::Cyc { cycles } => take("cycles", cycles),
            Self::Vmcs { pointer } => take("pointer", pointer),
            Self::Mnt { payload } => take("payload", payload),
            Self::Ptw {
                ip,
                payload_bytes,
                payload,
            } => {
                take("ip", ip.into());
                take("payload_bytes", payload_bytes.into());
                take("payload", payload);
            }
            Self::ExStop { ip } | Self::Bep { ip } => take("ip", ip.into()),
            Self::Mwait { hints, ext } => {
                take("hints", hints.into());
                take("ext", ext.into());
            }
            Self::Pwre {
                hw,
                state,
                sub_state,
            } => {
                take("hw", hw.into());
                take("state", state.into());
                take("sub_state", sub_state.into());
            }
            Self::Pwrx {
                last,
                deepest,
                wake,
            } => {
                take("last", last.into());
                take("deepest", deepest.into());
                take("wake", wake.into());
            }
            Self::Bbp { sz, kind } => {
                take("sz", sz.into());
                take("type", kind.into());
            }
            Self::Bip { id, sz, payload } => {
                take("id", id.into());
                take("sz", sz.into());
                take("payload", payload);
            }
            Self::Cfe { ip, kind, vector } => {
                take("ip", ip.into());
                take("type", kind.into());
                take("vector", vector.into());
            }
            Self::Evd { kind, payload } => {
                take("type", kind.into());
                take("payload", payload);
            }
            Self::Trig {
                ip,
                mult,
                trbv,
                icnt,
            } => {
                take("ip", ip.into());
                take("icntv", icnt.is_some().into());
                take("mult", mult.into());
                take("trbv", trbv.into());
                if let Some(icnt) = icnt {
                    take("icnt", icnt.into());
                }
            }
        }
    }
}
