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
pub struct PacketDeclaration {
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
pub struct FieldLayout {
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

const fn declare_packet(
    kind: Kind,
    name: &'static str,
    header: &'static [u8],
    mask: &'static [u8],
    size: u8,
    in_block: bool,
    only_in_block: bool,
) -> PacketDeclaration {
    PacketDeclaration {
        kind,
        name,
        header,
        mask,
        size,
        in_block,
        only_in_block,
    }
}

/// All packets; `ROWS[kind as usize].kind == kind`.
#[rustfmt::skip]
pub const ROWS: [PacketDeclaration; 32] = [
    declare_packet(Kind::Pad, "PAD", &[0x00], &[0xff], 1, true, false),
    declare_packet(Kind::Tnt, "TNT", &[0x00], &[0x01], 1, false, false),
    declare_packet(Kind::Tnt64, "TNT.64", &[0x02, 0xa3], &[0xff, 0xff], 8, false, false),
    declare_packet(Kind::Tip, "TIP", &[0x0d], &[0x1f], 1, false, false),
    declare_packet(Kind::TipPge, "TIP.PGE", &[0x11], &[0x1f], 1, false, false),
    declare_packet(Kind::TipPgd, "TIP.PGD", &[0x01], &[0x1f], 1, false, false),
    declare_packet(Kind::Fup, "FUP", &[0x1d], &[0x1f], 1, true, false),
    declare_packet(Kind::Pip, "PIP", &[0x02, 0x43], &[0xff, 0xff], 8, false, false),
    declare_packet(Kind::ModeExec, "MODE.Exec", &[0x99, 0x00], &[0xff, 0xe0], 2, false, false),
    declare_packet(Kind::ModeTsx, "MODE.TSX", &[0x99, 0x20], &[0xff, 0xe0], 2, false, false),
    declare_packet(Kind::TraceStop, "TraceStop", &[0x02, 0x83], &[0xff, 0xff], 2, false, false),
    declare_packet(Kind::Cbr, "CBR", &[0x02, 0x03], &[0xff, 0xff], 4, true, false),
    declare_packet(Kind::Tsc, "TSC", &[0x19], &[0xff], 8, true, false),
    declare_packet(Kind::Mtc, "MTC", &[0x59], &[0xff], 2, true, false),
    declare_packet(Kind::Tma, "TMA", &[0x02, 0x73], &[0xff, 0xff], 7, true, false),
    declare_packet(Kind::Cyc, "CYC", &[0x03], &[0x03], 1, true, false),
    declare_packet(Kind::Vmcs, "VMCS", &[0x02, 0xc8], &[0xff, 0xff], 7, false, false),
    declare_packet(Kind::Ovf, "OVF", &[0x02, 0xf3], &[0xff, 0xff], 2, true, false),
    declare_packet(
        Kind::Psb, "PSB",
        &[0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        16, false, false,
    ),
    declare_packet(Kind::PsbEnd, "PSBEND", &[0x02, 0x23], &[0xff, 0xff], 2, false, false),
    declare_packet(Kind::Mnt, "MNT", &[0x02, 0xc3, 0x88], &[0xff, 0xff, 0xff], 11, true, false),
    declare_packet(Kind::Ptw, "PTW", &[0x02, 0x12], &[0xff, 0x1f], 2, false, false),
    declare_packet(Kind::ExStop, "EXSTOP", &[0x02, 0x62], &[0xff, 0x7f], 2, true, false),
    declare_packet(Kind::Mwait, "MWAIT", &[0x02, 0xc2], &[0xff, 0xff], 10, false, false),
    declare_packet(Kind::Pwre, "PWRE", &[0x02, 0x22], &[0xff, 0xff], 4, true, false),
    declare_packet(Kind::Pwrx, "PWRX", &[0x02, 0xa2], &[0xff, 0xff], 7, true, false),
    declare_packet(Kind::Bbp, "BBP", &[0x02, 0x63], &[0xff, 0xff], 3, true, false),
    declare_packet(Kind::Bip, "BIP", &[0x04], &[0x07], 1, true, true),
    declare_packet(Kind::Bep, "BEP", &[0x02, 0x33], &[0xff, 0x7f], 2, true, false),
    declare_packet(Kind::Cfe, "CFE", &[0x02, 0x13], &[0xff, 0xff], 4, true, false),
    declare_packet(Kind::Evd, "EVD", &[0x02, 0x53], &[0xff, 0xff], 11, true, false),
    declare_packet(Kind::Trig, "TRIG", &[0xd9], &[0xff], 3, true, false),
];

/// Fields at fixed places, by packet and field.
#[rustfmt::skip]
pub mod field {
    use super::FieldLayout;

    pub const TNT_BITS: FieldLayout = FieldLayout { byte: 0, bit: 1, width: 7, shift: 0 };
    pub const TNT_64_BITS: FieldLayout = FieldLayout { byte: 2, bit: 0, width: 48, shift: 0 };
    pub const IP_BYTES: FieldLayout = FieldLayout { byte: 0, bit: 5, width: 3, shift: 0 };
    pub const PIP_NR: FieldLayout = FieldLayout { byte: 2, bit: 0, width: 1, shift: 0 };
    pub const PIP_CR3: FieldLayout = FieldLayout { byte: 2, bit: 1, width: 47, shift: 5 };
    pub const MODE_EXEC_CSL: FieldLayout = FieldLayout { byte: 1, bit: 0, width: 1, shift: 0 };
    pub const MODE_EXEC_CSD: FieldLayout = FieldLayout { byte: 1, bit: 1, width: 1, shift: 0 };
    pub const MODE_EXEC_IFLAG: FieldLayout = FieldLayout { byte: 1, bit: 2, width: 1, shift: 0 };
    pub const MODE_TSX_IN_TX: FieldLayout = FieldLayout { byte: 1, bit: 0, width: 1, shift: 0 };
    pub const MODE_TSX_TX_ABORT: FieldLayout = FieldLayout { byte: 1, bit: 1, width: 1, shift: 0 };
    pub const CBR_RATIO: FieldLayout = FieldLayout { byte: 2, bit: 0, width: 8, shift: 0 };
    pub const TSC_TSC: FieldLayout = FieldLayout { byte: 1, bit: 0, width: 56, shift: 0 };
    pub const MTC_CTC: FieldLayout = FieldLayout { byte: 1, bit: 0, width: 8, shift: 0 };
    pub const TMA_CTC: FieldLayout = FieldLayout { byte: 2, bit: 0, width: 16, shift: 0 };
    pub const TMA_FAST_COUNTER: FieldLayout = FieldLayout { byte: 5, bit: 0, width: 9, shift: 0 };
    pub const CYC_CYCLES: FieldLayout = FieldLayout { byte: 0, bit: 3, width: 5, shift: 0 };
    pub const VMCS_POINTER: FieldLayout = FieldLayout { byte: 2, bit: 0, width: 40, shift: 12 };
    pub const MNT_PAYLOAD: FieldLayout = FieldLayout { byte: 3, bit: 0, width: 64, shift: 0 };
    pub const PTW_IP: FieldLayout = FieldLayout { byte: 1, bit: 7, width: 1, shift: 0 };
    pub const PTW_PAYLOAD_BYTES: FieldLayout = FieldLayout { byte: 1, bit: 5, width: 2, shift: 0 };
    pub const EXSTOP_IP: FieldLayout = FieldLayout { byte: 1, bit: 7, width: 1, shift: 0 };
    pub const MWAIT_HINTS: FieldLayout = FieldLayout { byte: 2, bit: 0, width: 8, shift: 0 };
    pub const MWAIT_EXT: FieldLayout = FieldLayout { byte: 6, bit: 0, width: 2, shift: 0 };
    pub const PWRE_HW: FieldLayout = FieldLayout { byte: 2, bit: 7, width: 1, shift: 0 };
    pub const PWRE_STATE: FieldLayout = FieldLayout { byte: 3, bit: 4, width: 4, shift: 0 };
    pub const PWRE_SUB_STATE: FieldLayout = FieldLayout { byte: 3, bit: 0, width: 4, shift: 0 };
    pub const PWRX_LAST: FieldLayout = FieldLayout { byte: 2, bit: 4, width: 4, shift: 0 };
    pub const PWRX_DEEPEST: FieldLayout = FieldLayout { byte: 2, bit: 0, width: 4, shift: 0 };
    pub const PWRX_WAKE: FieldLayout = FieldLayout { byte: 3, bit: 0, width: 4, shift: 0 };
    pub const BBP_SZ: FieldLayout = FieldLayout { byte: 2, bit: 7, width: 1, shift: 0 };
    pub const BBP_TYPE: FieldLayout = FieldLayout { byte: 2, bit: 0, width: 5, shift: 0 };
    pub const BIP_ID: FieldLayout = FieldLayout { byte: 0, bit: 3, width: 5, shift: 0 };
    pub const BEP_IP: FieldLayout = FieldLayout { byte: 1, bit: 7, width: 1, shift: 0 };
    pub const CFE_IP: FieldLayout = FieldLayout { byte: 2, bit: 7, width: 1, shift: 0 };
    pub const CFE_TYPE: FieldLayout = FieldLayout { byte: 2, bit: 0, width: 5, shift: 0 };
    pub const CFE_VECTOR: FieldLayout = FieldLayout { byte: 3, bit: 0, width: 8, shift: 0 };
    pub const EVD_TYPE: FieldLayout = FieldLayout { byte: 2, bit: 0, width: 6, shift: 0 };
    pub const EVD_PAYLOAD: FieldLayout = FieldLayout { byte: 3, bit: 0, width: 64, shift: 0 };
    pub const TRIG_IP: FieldLayout = FieldLayout { byte: 1, bit: 7, width: 1, shift: 0 };
    pub const TRIG_ICNTV: FieldLayout = FieldLayout { byte: 1, bit: 6, width: 1, shift: 0 };
    pub const TRIG_MULT: FieldLayout = FieldLayout { byte: 1, bit: 5, width: 1, shift: 0 };
    pub const TRIG_TRBV: FieldLayout = FieldLayout { byte: 2, bit: 0, width: 8, shift: 0 };
}
