//! The length of plain instructions of 64-bit code: those that are nothing to PT, by two small tables made of the rows.

use super::form::{Form, Odd, Size, AFTER_MODRM};
use super::rows::Legacy;
use crate::class::Class;

/// By ModRM, for each kind of instruction: the bytes of ModRM and of what comes of it, and two marks.
type Operands = [u8; KINDS << 8];

/// In `Operands`: four more bytes if the SIB has no base.
const SIB_ALONE: u8 = 0x40;
/// In `Operands`: not plain.
const NOT: u8 = 0x80;
const KINDS: usize = 16;
/// The kind of what is not plain, whatever its ModRM.
const OTHERS: u8 = 15;
/// The kinds without a mask: an immediate of so many bytes where TEST is in group 3.
const GROUP_3: [(usize, u8); 3] = [(1, 8), (2, 9), (4, 10)];
/// The values of ModRM that the other kinds have, as in `Form`; the first has no ModRM.
const MASKS: [u16; 8] = [0, 0xffff, 0x00ff, 0xff00, 0x0101, 0x0303, 0x4343, 0xf0f0];
/// Of group 5: INC, DEC, PUSH, which are no branches.
const GROUP_5: u16 = 0x4343;

/// Opcodes without prefix and after 66, F3 and F2; one byte, then 0F; then all of it again after REX.W.
const FORMS: usize = 8 << 9;

/// Upper half: the kind. Lower half: bytes of the opcode and its immediate.
static PLAIN: [u8; FORMS] = plain_forms();
static OPERANDS: Operands = operands();

/// The length of the instruction, with one prefix of 66, F3 and F2 at most, a REX prefix and an opcode of one byte or two;
/// 0 if it is not so, no plain one, or not known.
#[inline(always)]
pub(crate) fn length(bytes: &[u8; 8]) -> usize {
    let mut word = u64::from_le_bytes(*bytes);
    let (mut length, mut row) = (0, 0);
    if let Some(prefix) = selector(word as u8) {
        (length, row) = (1, prefix << 9);
        word >>= 8;
    }
    let rex = usize::from(word as u8 & 0xf0 == 0x40);
    row |= (word as usize >> 3 & rex) << 11;
    word >>= 8 * rex;
    let escape = usize::from(word as u8 == 0x0f);
    row |= escape << 8;
    word >>= 8 * escape;
    let form = PLAIN[(row | word as usize & 0xff) % FORMS];
    let after = OPERANDS[usize::from(form >> 4) << 8 | (word >> 8) as usize & 0xff];
    if after >= NOT {
        return 0;
    }
    let alone = usize::from(after & SIB_ALONE != 0 && word >> 16 & 7 == 5);
    length += rex + escape + usize::from(form & 0xf);
    length + usize::from(after % SIB_ALONE) + 4 * alone
}

#[inline(always)]
const fn selector(byte: u8) -> Option<usize> {
    match byte {
        0x66 => Some(1),
        0xf3 => Some(2),
        0xf2 => Some(3),
        _ => None,
    }
}

const fn plain_forms() -> [u8; FORMS] {
    let legacy = Legacy::BITS_64;
    let mut forms = [OTHERS << 4; FORMS];
    let mut at = 0;
    while at < FORMS {
        let (prefix, map, wide) = (at >> 9 & 3, at >> 8 & 1, at >> 11 != 0);
        let operand = match (wide, prefix) {
            (true, _) => Size::Quad,
            (false, 1) => Size::Word,
            _ => Size::Double,
        };
        let form = legacy.form(map, prefix, at as u8);
        if let Some((kind, immediate)) = plain(form, operand) {
            forms[at] = kind << 4 | (1 + immediate as u8);
        }
        at += 1;
    }
    forms
}

/// Its kind, and the bytes of its immediate; that of group 3 is in the kind.
const fn plain(form: Form, operand: Size) -> Option<(u8, usize)> {
    if !form.is_known() || form.is_string() || !matches!(form.class(), Class::Other) {
        return None;
    }
    let immediate = form.immediate(operand);
    let mut mask = if form.has_modrm() { form.modrms() } else { 0 };
    match form.odd() {
        None => {}
        Some(Odd::Group5) => mask &= GROUP_5,
        Some(Odd::Group3) => {
            let mut at = 0;
            while at < GROUP_3.len() {
                if GROUP_3[at].0 == immediate {
                    return Some((GROUP_3[at].1, 0));
                }
                at += 1;
            }
            return None;
        }
        Some(_) => return None,
    }
    let mut kind = 0;
    while kind < MASKS.len() {
        if MASKS[kind] == mask && (kind == 0) != form.has_modrm() {
            return Some((kind as u8, immediate));
        }
        kind += 1;
    }
    None
}

const fn operands() -> Operands {
    let mut lengths = [NOT; KINDS << 8];
    let mut modrm = 0;
    while modrm < 256 {
        lengths[modrm] = 0;
        let (register, reg) = (modrm >= 0xc0, modrm >> 3 & 7);
        let mut length = AFTER_MODRM[modrm];
        if modrm & 0xc7 == 4 {
            length |= SIB_ALONE;
        }
        let mut kind = 1;
        while kind < MASKS.len() {
            if MASKS[kind] >> (reg | (register as usize) << 3) & 1 != 0 {
                lengths[kind << 8 | modrm] = length;
            }
            kind += 1;
        }
        let mut group = 0;
        while group < GROUP_3.len() {
            let (immediate, kind) = GROUP_3[group];
            let test = if reg < 2 { immediate as u8 } else { 0 };
            lengths[(kind as usize) << 8 | modrm] = length + test;
            group += 1;
        }
        modrm += 1;
    }
    lengths
}
