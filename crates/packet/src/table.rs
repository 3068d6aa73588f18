//! The packet table. Generated: `python -m rtit.packets.rust_table`.

/// What a packet is, without its fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    Pad,
    Tnt,
    Tnt64,
    Tip,
    TipPge,
    TipPgd,
    Fup,
    Pip,
    ModeExec,
    ModeTsx,
    TraceStop,
    Cbr,
    Tsc,
    Mtc,
    Tma,
    Cyc,
    Vmcs,
    Ovf,
    Psb,
    PsbEnd,
    Mnt,
    Ptw,
    ExStop,
    Mwait,
    Pwre,
    Pwrx,
    Bbp,
    Bip,
    Bep,
    Cfe,
    Evd,
    Trig,
}

/// One packet's declaration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    pub kind: Kind,
    pub name: &'static str,
    /// A byte b at i fits iff `b & mask[i] == header[i]`; both have the same length.
    pub header: &'static [u8],
    pub mask: &'static [u8],
    /// Bytes without a payload of varying length.
    pub size: u8,
    /// May come between BBP and BEP (Table 33-15).
    pub in_block: bool,
    /// Another packet outside a block.
    pub only_in_block: bool,
}

/// Where a field is: `width` bits from bit `bit` of byte `byte` on, little endian, then shifted
/// left by `shift`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    pub byte: usize,
    pub bit: u32,
    pub width: u32,
    pub shift: u32,
}

/// First byte of all packets with an extended opcode.
pub const ESCAPE: u8 = 0x02;

/// The longest CYC that is read.
pub const CYC_MAX_BYTES: usize = 9;

/// Payload bytes of TIP by ip_bytes; `None` is reserved.
pub const IP_PAYLOAD: [Option<u8>; 8] = [
    Some(0),
    Some(2),
    Some(4),
    Some(6),
    Some(6),
    None,
    Some(8),
    None,
];

/// Byte 1 of MODE.Exec: reserved if `byte & .0 == .1`.
pub const MODE_EXEC_INVALID: (u8, u8) = (0x03, 0x03);

/// Byte 1 of MODE.TSX: reserved if `byte & .0 == .1`.
pub const MODE_TSX_INVALID: (u8, u8) = (0x03, 0x03);

/// Payload bytes of PTW by payload_bytes; `None` is reserved.
pub const PTW_PAYLOAD: [Option<u8>; 4] = [Some(4), Some(8), None, None];

/// Payload bytes of BIP by sz; `None` is reserved.
pub const BIP_PAYLOAD: [Option<u8>; 2] = [Some(8), Some(4)];

/// Payload bytes of TRIG by icntv; `None` is reserved.
pub const TRIG_PAYLOAD: [Option<u8>; 2] = [Some(0), Some(2)];

/// All packets; `ROWS[kind as usize].kind == kind`.
#[rustfmt::skip]
pub const ROWS: [Row; 32] = [
    Row { kind: Kind::Pad, name: "PAD", header: &[0x00], mask: &[0xff], size: 1, in_block: true, only_in_block: false },
    Row { kind: Kind::Tnt, name: "TNT", header: &[0x00], mask: &[0x01], size: 1, in_block: false, only_in_block: false },
    Row { kind: Kind::Tnt64, name: "TNT.64", header: &[0x02, 0xa3], mask: &[0xff, 0xff], size: 8, in_block: false, only_in_block: false },
    Row { kind: Kind::Tip, name: "TIP", header: &[0x0d], mask: &[0x1f], size: 1, in_block: false, only_in_block: false },
    Row { kind: Kind::TipPge, name: "TIP.PGE", header: &[0x11], mask: &[0x1f], size: 1, in_block: false, only_in_block: false },
    Row { kind: Kind::TipPgd, name: "TIP.PGD", header: &[0x01], mask: &[0x1f], size: 1, in_block: false, only_in_block: false },
    Row { kind: Kind::Fup, name: "FUP", header: &[0x1d], mask: &[0x1f], size: 1, in_block: true, only_in_block: false },
    Row { kind: Kind::Pip, name: "PIP", header: &[0x02, 0x43], mask: &[0xff, 0xff], size: 8, in_block: false, only_in_block: false },
    Row { kind: Kind::ModeExec, name: "MODE.Exec", header: &[0x99, 0x00], mask: &[0xff, 0xe0], size: 2, in_block: false, only_in_block: false },
    Row { kind: Kind::ModeTsx, name: "MODE.TSX", header: &[0x99, 0x20], mask: &[0xff, 0xe0], size: 2, in_block: false, only_in_block: false },
    Row { kind: Kind::TraceStop, name: "TraceStop", header: &[0x02, 0x83], mask: &[0xff, 0xff], size: 2, in_block: false, only_in_block: false },
    Row { kind: Kind::Cbr, name: "CBR", header: &[0x02, 0x03], mask: &[0xff, 0xff], size: 4, in_block: true, only_in_block: false },
    Row { kind: Kind::Tsc, name: "TSC", header: &[0x19], mask: &[0xff], size: 8, in_block: true, only_in_block: false },
    Row { kind: Kind::Mtc, name: "MTC", header: &[0x59], mask: &[0xff], size: 2, in_block: true, only_in_block: false },
    Row { kind: Kind::Tma, name: "TMA", header: &[0x02, 0x73], mask: &[0xff, 0xff], size: 7, in_block: true, only_in_block: false },
    Row { kind: Kind::Cyc, name: "CYC", header: &[0x03], mask: &[0x03], size: 1, in_block: true, only_in_block: false },
    Row { kind: Kind::Vmcs, name: "VMCS", header: &[0x02, 0xc8], mask: &[0xff, 0xff], size: 7, in_block: false, only_in_block: false },
    Row { kind: Kind::Ovf, name: "OVF", header: &[0x02, 0xf3], mask: &[0xff, 0xff], size: 2, in_block: true, only_in_block: false },
    Row { kind: Kind::Psb, name: "PSB", header: &[0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82], mask: &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], size: 16, in_block: false, only_in_block: false },
    Row { kind: Kind::PsbEnd, name: "PSBEND", header: &[0x02, 0x23], mask: &[0xff, 0xff], size: 2, in_block: false, only_in_block: false },
    Row { kind: Kind::Mnt, name: "MNT", header: &[0x02, 0xc3, 0x88], mask: &[0xff, 0xff, 0xff], size: 11, in_block: true, only_in_block: false },
    Row { kind: Kind::Ptw, name: "PTW", header: &[0x02, 0x12], mask: &[0xff, 0x1f], size: 2, in_block: false, only_in_block: false },
    Row { kind: Kind::ExStop, name: "EXSTOP", header: &[0x02, 0x62], mask: &[0xff, 0x7f], size: 2, in_block: true, only_in_block: false },
    Row { kind: Kind::Mwait, name: "MWAIT", header: &[0x02, 0xc2], mask: &[0xff, 0xff], size: 10, in_block: false, only_in_block: false },
    Row { kind: Kind::Pwre, name: "PWRE", header: &[0x02, 0x22], mask: &[0xff, 0xff], size: 4, in_block: true, only_in_block: false },
    Row { kind: Kind::Pwrx, name: "PWRX", header: &[0x02, 0xa2], mask: &[0xff, 0xff], size: 7, in_block: true, only_in_block: false },
    Row { kind: Kind::Bbp, name: "BBP", header: &[0x02, 0x63], mask: &[0xff, 0xff], size: 3, in_block: true, only_in_block: false },
    Row { kind: Kind::Bip, name: "BIP", header: &[0x04], mask: &[0x07], size: 1, in_block: true, only_in_block: true },
    Row { kind: Kind::Bep, name: "BEP", header: &[0x02, 0x33], mask: &[0xff, 0x7f], size: 2, in_block: true, only_in_block: false },
    Row { kind: Kind::Cfe, name: "CFE", header: &[0x02, 0x13], mask: &[0xff, 0xff], size: 4, in_block: true, only_in_block: false },
    Row { kind: Kind::Evd, name: "EVD", header: &[0x02, 0x53], mask: &[0xff, 0xff], size: 11, in_block: true, only_in_block: false },
    Row { kind: Kind::Trig, name: "TRIG", header: &[0xd9], mask: &[0xff], size: 3, in_block: true, only_in_block: false },
];

/// Fields at fixed places, by packet and field.
#[rustfmt::skip]
pub mod field {
    use super::Field;

    pub const TNT_BITS: Field = Field { byte: 0, bit: 1, width: 7, shift: 0 };
    pub const TNT_64_BITS: Field = Field { byte: 2, bit: 0, width: 48, shift: 0 };
    pub const IP_BYTES: Field = Field { byte: 0, bit: 5, width: 3, shift: 0 };
    pub const PIP_NR: Field = Field { byte: 2, bit: 0, width: 1, shift: 0 };
    pub const PIP_CR3: Field = Field { byte: 2, bit: 1, width: 47, shift: 5 };
    pub const MODE_EXEC_CSL: Field = Field { byte: 1, bit: 0, width: 1, shift: 0 };
    pub const MODE_EXEC_CSD: Field = Field { byte: 1, bit: 1, width: 1, shift: 0 };
    pub const MODE_EXEC_IFLAG: Field = Field { byte: 1, bit: 2, width: 1, shift: 0 };
    pub const MODE_TSX_IN_TX: Field = Field { byte: 1, bit: 0, width: 1, shift: 0 };
    pub const MODE_TSX_TX_ABORT: Field = Field { byte: 1, bit: 1, width: 1, shift: 0 };
    pub const CBR_RATIO: Field = Field { byte: 2, bit: 0, width: 8, shift: 0 };
    pub const TSC_TSC: Field = Field { byte: 1, bit: 0, width: 56, shift: 0 };
    pub const MTC_CTC: Field = Field { byte: 1, bit: 0, width: 8, shift: 0 };
    pub const TMA_CTC: Field = Field { byte: 2, bit: 0, width: 16, shift: 0 };
    pub const TMA_FAST_COUNTER: Field = Field { byte: 5, bit: 0, width: 9, shift: 0 };
    pub const CYC_CYCLES: Field = Field { byte: 0, bit: 3, width: 5, shift: 0 };
    pub const VMCS_POINTER: Field = Field { byte: 2, bit: 0, width: 40, shift: 12 };
    pub const MNT_PAYLOAD: Field = Field { byte: 3, bit: 0, width: 64, shift: 0 };
    pub const PTW_IP: Field = Field { byte: 1, bit: 7, width: 1, shift: 0 };
    pub const PTW_PAYLOAD_BYTES: Field = Field { byte: 1, bit: 5, width: 2, shift: 0 };
    pub const EXSTOP_IP: Field = Field { byte: 1, bit: 7, width: 1, shift: 0 };
    pub const MWAIT_HINTS: Field = Field { byte: 2, bit: 0, width: 8, shift: 0 };
    pub const MWAIT_EXT: Field = Field { byte: 6, bit: 0, width: 2, shift: 0 };
    pub const PWRE_HW: Field = Field { byte: 2, bit: 7, width: 1, shift: 0 };
    pub const PWRE_STATE: Field = Field { byte: 3, bit: 4, width: 4, shift: 0 };
    pub const PWRE_SUB_STATE: Field = Field { byte: 3, bit: 0, width: 4, shift: 0 };
    pub const PWRX_LAST: Field = Field { byte: 2, bit: 4, width: 4, shift: 0 };
    pub const PWRX_DEEPEST: Field = Field { byte: 2, bit: 0, width: 4, shift: 0 };
    pub const PWRX_WAKE: Field = Field { byte: 3, bit: 0, width: 4, shift: 0 };
    pub const BBP_SZ: Field = Field { byte: 2, bit: 7, width: 1, shift: 0 };
    pub const BBP_TYPE: Field = Field { byte: 2, bit: 0, width: 5, shift: 0 };
    pub const BIP_ID: Field = Field { byte: 0, bit: 3, width: 5, shift: 0 };
    pub const BEP_IP: Field = Field { byte: 1, bit: 7, width: 1, shift: 0 };
    pub const CFE_IP: Field = Field { byte: 2, bit: 7, width: 1, shift: 0 };
    pub const CFE_TYPE: Field = Field { byte: 2, bit: 0, width: 5, shift: 0 };
    pub const CFE_VECTOR: Field = Field { byte: 3, bit: 0, width: 8, shift: 0 };
    pub const EVD_TYPE: Field = Field { byte: 2, bit: 0, width: 6, shift: 0 };
    pub const EVD_PAYLOAD: Field = Field { byte: 3, bit: 0, width: 64, shift: 0 };
    pub const TRIG_IP: Field = Field { byte: 1, bit: 7, width: 1, shift: 0 };
    pub const TRIG_ICNTV: Field = Field { byte: 1, bit: 6, width: 1, shift: 0 };
    pub const TRIG_MULT: Field = Field { byte: 1, bit: 5, width: 1, shift: 0 };
    pub const TRIG_TRBV: Field = Field { byte: 2, bit: 0, width: 8, shift: 0 };
}
