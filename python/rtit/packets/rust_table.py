"""The Rust form of the packet table: `python -m rtit.packets.rust_table [--check]`.

Writes crates/packet/src/table.rs of the source tree; with `--check` it only compares, and fails if
they differ.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rtit.generated_files import write_or_check_generated_file
from rtit.packets.table import (
    CYC_MAX_BYTES,
    DECLARATION_BY_NAME,
    DECLARATIONS,
    ESCAPE,
    PacketDeclaration,
)

TARGET = Path(__file__).resolve().parents[3] / "crates" / "packet" / "src" / "table.rs"

_VARIANTS = {
    "TNT.64": "Tnt64",
    "TIP.PGE": "TipPge",
    "TIP.PGD": "TipPgd",
    "MODE.Exec": "ModeExec",
    "MODE.TSX": "ModeTsx",
    "TraceStop": "TraceStop",
    "PSBEND": "PsbEnd",
    "EXSTOP": "ExStop",
}

_HEAD = """\
//! The packet table. Generated: `python -m rtit.packets.rust_table`.

/// What a packet is, without its fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
"""

_TYPES = """\
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
"""

LINE_LENGTH = 120
_ROW_FUNCTION = """\
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

"""


def rust_variant_name(name: str) -> str:
    """Return the name of a packet's variant in the Rust enums."""
    return _VARIANTS.get(name, name.capitalize())


def render_rust_table() -> str:
    """Return the text of table.rs."""
    out = [_HEAD]
    out += [f"    {rust_variant_name(row.name)},\n" for row in DECLARATIONS]
    out += ["}\n\n", _TYPES, "\n"]
    out.append("/// First byte of all packets with an extended opcode.\n")
    out.append(f"pub const ESCAPE: u8 = {ESCAPE:#04x};\n\n")
    out.append("/// The longest CYC that is read.\n")
    out.append(f"pub const CYC_MAX_BYTES: usize = {CYC_MAX_BYTES};\n\n")
    for row in DECLARATIONS:
        if row.payload is not None:
            out.append(_render_payload_sizes(row))
        out += [_render_undefined_header(row, i) for i in range(len(row.invalid))]
    out.append(_ROW_FUNCTION)
    out.append("/// All packets; `ROWS[kind as usize].kind == kind`.\n#[rustfmt::skip]\n")
    out.append(f"pub const ROWS: [PacketDeclaration; {len(DECLARATIONS)}] = [\n")
    out += map(_render_table_row, DECLARATIONS)
    out.append(
        "];\n\n/// Fields at fixed places, by packet and field.\n"
        "#[rustfmt::skip]\npub mod field {\n"
    )
    out.append("    use super::FieldLayout;\n\n")
    out += [_field_line(row, i) for row in DECLARATIONS for i in range(len(row.fields))]
    out.append("}\n")
    return "".join(out)


def _rust_constant_name(name: str) -> str:
    return name.upper().replace(".", "_")


def _rust_byte_slice(raw: bytes) -> str:
    return "&[" + ", ".join(f"{byte:#04x}" for byte in raw) + "]"


def _render_table_row(row: PacketDeclaration) -> str:
    flags = f"{str(row.in_block).lower()}, {str(row.only_in_block).lower()}"
    texts = (
        f'Kind::{rust_variant_name(row.name)}, "{row.name}"',
        _rust_byte_slice(row.header),
        _rust_byte_slice(row.mask),
        f"{row.size}, {flags}",
    )
    line = f"    declare_packet({', '.join(texts)}),\n"
    if len(line) <= LINE_LENGTH:
        return line
    return "    declare_packet(\n" + "".join(f"        {text},\n" for text in texts) + "    ),\n"


def _render_payload_sizes(row: PacketDeclaration) -> str:
    """Return payload bytes by selector; the IP packets share the table of TIP."""
    payload = row.payload
    if payload is None or (payload is DECLARATION_BY_NAME["TIP"].payload and row.name != "TIP"):
        return ""
    width = next(field.width for field in row.fields if field.name == payload.selector)
    sizes = [payload.sizes.get(value) for value in range(1 << width)]
    shown = ["None" if size is None else f"Some({size})" for size in sizes]
    name = "IP" if row.name == "TIP" else _rust_constant_name(row.name)
    text = f"/// Payload bytes of {row.name} by {payload.selector}; `None` is reserved.\n"
    head = f"pub const {name}_PAYLOAD: [Option<u8>; {len(sizes)}] = ["
    joined = ", ".join(shown)
    if len(joined) > 58:  # where rustfmt begins to give each element a line
        joined = "\n" + "".join(f"    {item},\n" for item in shown)
    line = f"{head}{joined}];\n"
    return text + line + "\n"


def _render_undefined_header(row: PacketDeclaration, index: int) -> str:
    rule = row.invalid[index]
    name = f"{_rust_constant_name(row.name)}_INVALID"
    return (
        f"/// Byte {rule.byte} of {row.name}: reserved if `byte & .0 == .1`.\n"
        f"pub const {name}: (u8, u8) = ({rule.mask:#04x}, {rule.value:#04x});\n\n"
    )


def _field_line(row: PacketDeclaration, index: int) -> str:
    field = row.fields[index]
    if field.width == 0 or field.context:
        return ""
    if row.payload is DECLARATION_BY_NAME["TIP"].payload and row.name != "TIP":
        return ""
    packet = "IP" if row.name == "TIP" else _rust_constant_name(row.name)
    name = field.name.removeprefix("ip_").upper() if packet == "IP" else field.name.upper()
    return (
        f"    pub const {packet}_{name}: FieldLayout = "
        f"FieldLayout {{ byte: {field.byte}, bit: {field.bit}, "
        f"width: {field.width}, shift: {field.shift} }};\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Write or, with `--check`, compare. Returns the exit status: see `generated.write`."""
    return write_or_check_generated_file(
        arguments, TARGET, render_rust_table(), "rtit.packets.rust_table"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
