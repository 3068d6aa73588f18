//! Opcodes with a VEX prefix, in 64-bit code.

use super::opcode_form::{ImmediateKind, OpcodeForm, DECODE_WINDOW};
use super::opcode_rows::{opcode_row, OpcodeRow, ALL, F2, F3, N, P66};

const ANY: OpcodeForm = OpcodeForm::ANY;
/// Without a second source.
const NO_VVVV: OpcodeForm = OpcodeForm::ANY.without_vvvv();
const ANY_BYTE: OpcodeForm = ANY.with_immediate(ImmediateKind::Byte);
const NO_VVVV_BYTE: OpcodeForm = NO_VVVV.with_immediate(ImmediateKind::Byte);
const REGISTER_BYTE: OpcodeForm = OpcodeForm::REGISTER.with_immediate(ImmediateKind::Byte);

/// Vectors of 128 and of 256 bits, or scalars; the maps are numbered as in the prefix.
const EITHER: &[OpcodeRow] = &[
    opcode_row(1, N | P66, 0x10, 0x11, NO_VVVV),
    opcode_row(1, F3 | F2, 0x10, 0x11, OpcodeForm::MEMORY.without_vvvv()),
    opcode_row(1, F3 | F2, 0x12, 0x12, NO_VVVV),
    opcode_row(1, N | P66, 0x14, 0x15, ANY),
    opcode_row(1, F3, 0x16, 0x16, NO_VVVV),
    opcode_row(1, N | P66, 0x28, 0x29, NO_VVVV),
    opcode_row(1, F3 | F2, 0x2a, 0x2a, ANY),
    opcode_row(1, N | P66, 0x2b, 0x2b, OpcodeForm::MEMORY.without_vvvv()),
    opcode_row(1, F3 | F2, 0x2c, 0x2d, NO_VVVV),
    opcode_row(1, N | P66, 0x2e, 0x2f, NO_VVVV),
    opcode_row(1, N | P66, 0x50, 0x50, OpcodeForm::REGISTER.without_vvvv()),
    opcode_row(1, N | P66, 0x51, 0x51, NO_VVVV),
    opcode_row(1, F3 | F2, 0x51, 0x51, ANY),
    opcode_row(1, N | P66, 0x54, 0x57, ANY),
    opcode_row(1, ALL, 0x58, 0x59, ANY),
    opcode_row(1, N | P66, 0x5a, 0x5a, NO_VVVV),
    opcode_row(1, F3 | F2, 0x5a, 0x5a, ANY),
    opcode_row(1, N | P66 | F3, 0x5b, 0x5b, NO_VVVV),
    opcode_row(1, ALL, 0x5c, 0x5f, ANY),
    opcode_row(1, P66, 0x60, 0x6d, ANY),
    opcode_row(1, P66 | F3, 0x6f, 0x6f, NO_VVVV),
    opcode_row(1, P66 | F3 | F2, 0x70, 0x70, NO_VVVV_BYTE),
    opcode_row(
        1,
        P66,
        0x71,
        0x72,
        REGISTER_BYTE.only_modrm_reg_values(0b0101_0100),
    ),
    opcode_row(
        1,
        P66,
        0x73,
        0x73,
        REGISTER_BYTE.only_modrm_reg_values(0b1100_1100),
    ),
    opcode_row(1, P66, 0x74, 0x76, ANY),
    opcode_row(1, N, 0x77, 0x77, OpcodeForm::BARE.without_vvvv()),
    opcode_row(1, P66 | F2, 0x7c, 0x7d, ANY),
    opcode_row(1, P66 | F3, 0x7f, 0x7f, NO_VVVV),
    opcode_row(1, ALL, 0xc2, 0xc2, ANY_BYTE),
    opcode_row(1, N | P66, 0xc6, 0xc6, ANY_BYTE),
    opcode_row(1, P66 | F2, 0xd0, 0xd0, ANY),
    opcode_row(1, P66, 0xd1, 0xd5, ANY),
    opcode_row(1, P66, 0xd7, 0xd7, OpcodeForm::REGISTER.without_vvvv()),
    opcode_row(1, P66, 0xd8, 0xe5, ANY),
    opcode_row(1, P66 | F3 | F2, 0xe6, 0xe6, NO_VVVV),
    opcode_row(1, P66, 0xe7, 0xe7, OpcodeForm::MEMORY.without_vvvv()),
    opcode_row(1, P66, 0xe8, 0xef, ANY),
    opcode_row(1, F2, 0xf0, 0xf0, OpcodeForm::MEMORY.without_vvvv()),
    opcode_row(1, P66, 0xf1, 0xf6, ANY),
    opcode_row(1, P66, 0xf8, 0xfe, ANY),
    opcode_row(2, P66, 0x00, 0x0b, ANY),
    opcode_row(2, P66, 0x17, 0x17, NO_VVVV),
    opcode_row(2, P66, 0x18, 0x18, NO_VVVV.require_w_clear()),
    opcode_row(2, P66, 0x1c, 0x1e, NO_VVVV),
    opcode_row(2, P66, 0x20, 0x25, NO_VVVV),
    opcode_row(2, P66, 0x28, 0x29, ANY),
    opcode_row(2, P66, 0x2a, 0x2a, OpcodeForm::MEMORY.without_vvvv()),
    opcode_row(2, P66, 0x2b, 0x2b, ANY),
    opcode_row(2, P66, 0x30, 0x35, NO_VVVV),
    opcode_row(2, P66, 0x37, 0x40, ANY),
    opcode_row(2, P66, 0x45, 0x45, ANY),
    opcode_row(2, P66, 0x46, 0x46, ANY.require_w_clear()),
    opcode_row(2, P66, 0x47, 0x47, ANY),
    opcode_row(2, P66, 0x58, 0x59, NO_VVVV.require_w_clear()),
    opcode_row(2, P66, 0x78, 0x79, NO_VVVV.require_w_clear()),
    // FMA
    opcode_row(2, P66, 0x96, 0x9f, ANY),
    opcode_row(2, P66, 0xa6, 0xaf, ANY),
    opcode_row(2, P66, 0xb6, 0xbf, ANY),
    opcode_row(3, P66, 0x02, 0x02, ANY_BYTE.require_w_clear()),
    opcode_row(3, P66, 0x04, 0x05, NO_VVVV_BYTE.require_w_clear()),
    opcode_row(3, P66, 0x08, 0x09, NO_VVVV_BYTE),
    opcode_row(3, P66, 0x0a, 0x0f, ANY_BYTE),
    opcode_row(3, P66, 0x40, 0x40, ANY_BYTE),
    opcode_row(3, P66, 0x42, 0x42, ANY_BYTE),
    opcode_row(3, P66, 0x44, 0x44, ANY_BYTE),
    opcode_row(3, P66, 0x4a, 0x4c, ANY_BYTE.require_w_clear()),
];

const L0: &[OpcodeRow] = &[
    opcode_row(1, N, 0x12, 0x12, ANY),
    opcode_row(1, P66, 0x12, 0x12, OpcodeForm::MEMORY),
    opcode_row(1, N | P66, 0x13, 0x13, OpcodeForm::MEMORY.without_vvvv()),
    opcode_row(1, N, 0x16, 0x16, ANY),
    opcode_row(1, P66, 0x16, 0x16, OpcodeForm::MEMORY),
    opcode_row(1, N | P66, 0x17, 0x17, OpcodeForm::MEMORY.without_vvvv()),
    opcode_row(1, P66, 0x6e, 0x6e, NO_VVVV),
    opcode_row(1, P66 | F3, 0x7e, 0x7e, NO_VVVV),
    opcode_row(1, P66, 0xc4, 0xc4, ANY_BYTE),
    opcode_row(1, P66, 0xc5, 0xc5, REGISTER_BYTE.without_vvvv()),
    opcode_row(1, P66, 0xd6, 0xd6, NO_VVVV),
    opcode_row(1, P66, 0xf7, 0xf7, OpcodeForm::REGISTER.without_vvvv()),
    opcode_row(2, P66, 0x41, 0x41, NO_VVVV),
    // BMI
    opcode_row(2, N, 0xf2, 0xf2, ANY),
    opcode_row(2, N, 0xf3, 0xf3, ANY.only_modrm_reg_values(0b1110)),
    opcode_row(2, N | F3 | F2, 0xf5, 0xf5, ANY),
    opcode_row(2, F2, 0xf6, 0xf6, ANY),
    opcode_row(2, ALL, 0xf7, 0xf7, ANY),
    opcode_row(3, P66, 0x14, 0x17, NO_VVVV_BYTE),
    opcode_row(3, P66, 0x20, 0x22, ANY_BYTE),
    opcode_row(3, P66, 0x41, 0x41, ANY_BYTE),
    opcode_row(3, P66, 0x60, 0x63, NO_VVVV_BYTE),
    opcode_row(3, F2, 0xf0, 0xf0, NO_VVVV_BYTE),
];

const L1: &[OpcodeRow] = &[
    opcode_row(2, P66, 0x19, 0x19, NO_VVVV.require_w_clear()),
    opcode_row(
        2,
        P66,
        0x1a,
        0x1a,
        OpcodeForm::MEMORY.without_vvvv().require_w_clear(),
    ),
    opcode_row(2, P66, 0x36, 0x36, ANY.require_w_clear()),
    opcode_row(
        2,
        P66,
        0x5a,
        0x5a,
        OpcodeForm::MEMORY.without_vvvv().require_w_clear(),
    ),
    opcode_row(3, P66, 0x00, 0x01, NO_VVVV_BYTE.require_w_set()),
    opcode_row(3, P66, 0x06, 0x06, ANY_BYTE.require_w_clear()),
    opcode_row(3, P66, 0x18, 0x18, ANY_BYTE.require_w_clear()),
    opcode_row(3, P66, 0x19, 0x19, NO_VVVV_BYTE.require_w_clear()),
    opcode_row(3, P66, 0x38, 0x38, ANY_BYTE.require_w_clear()),
    opcode_row(3, P66, 0x39, 0x39, NO_VVVV_BYTE.require_w_clear()),
    opcode_row(3, P66, 0x46, 0x46, ANY_BYTE.require_w_clear()),
];

/// By map, L and pp.
static FORMS: [[[[OpcodeForm; 256]; 4]; 2]; 4] =
    build_form_table(&[(EITHER, 0), (EITHER, 1), (L0, 0), (L1, 1)]);

const fn build_form_table(lists: &[(&[OpcodeRow], usize)]) -> [[[[OpcodeForm; 256]; 4]; 2]; 4] {
    let mut forms = [[[[OpcodeForm::UNKNOWN; 256]; 4]; 2]; 4];
    let mut list = 0;
    while list < lists.len() {
        let (rows, length) = lists[list];
        let mut at = 0;
        while at < rows.len() {
            let row = &rows[at];
            let mut prefix = 0;
            while prefix < 4 {
                if row.prefixes >> prefix & 1 != 0 {
                    row.fill_forms(&mut forms[row.map as usize][length][prefix]);
                }
                prefix += 1;
            }
            at += 1;
        }
        list += 1;
    }
    forms
}

/// The form of an instruction that begins with C4 or C5; `at` moves to the byte after its opcode.
pub(super) fn read_vex_form(bytes: &[u8; DECODE_WINDOW], at: &mut usize) -> OpcodeForm {
    let (map, last, w) = match bytes[0] {
        0xc5 => (1, bytes[1], false),
        _ => (bytes[1] & 0x1f, bytes[2], bytes[2] & 0x80 != 0),
    };
    let opcode = match bytes[0] {
        0xc5 => 2,
        _ => 3,
    };
    *at = opcode + 1;
    let length = usize::from(last >> 2 & 1);
    let vvvv = last >> 3 & 0xf;
    match FORMS.get(usize::from(map)) {
        Some(forms) => {
            let form = forms[length][usize::from(last & 3)][usize::from(bytes[opcode])];
            if form.allows_vex(vvvv, w) {
                form
            } else {
                OpcodeForm::UNKNOWN
            }
        }
        None => OpcodeForm::UNKNOWN,
    }
}
