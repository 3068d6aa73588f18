//! Names, rows and fields of packets.

use crate::packet::PacketKind;
use crate::table::{Kind, Row, ROWS};

impl Kind {
    /// The packet's declaration.
    #[inline]
    pub const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The packet's name: as in the chapter (`TIP.PGE`), `TNT.64` for the long TNT.
    #[inline]
    pub const fn name(self) -> &'static str {
        self.row().name
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
    pub fn ends_block(&self) -> bool {
        matches!(self, Self::Bep { .. } | Self::Ovf) || !self.kind().row().in_block
    }

    /// Calls `take` with the name and value of each field, in declared order, named as in the Python table; a
    /// suppressed IP payload is left out, and a TNT gives `count` and `bits`.
    pub fn fields(&self, mut take: impl FnMut(&'static str, u64)) {
        match *self {
            Self::Pad | Self::TraceStop | Self::Ovf | Self::Psb | Self::PsbEnd => {}
            Self::Tnt(tnt) | Self::Tnt64(tnt) => {
                take("count", tnt.count.into());
                take("bits", tnt.bits);
            }
            Self::Tip(ip) | Self::TipPge(ip) | Self::TipPgd(ip) | Self::Fup(ip) => {
                take("ip_bytes", ip.ip_bytes.into());
                if !ip.suppressed() {
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
