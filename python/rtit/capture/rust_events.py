"""The Rust form of the capture events: `python -m rtit.capture.rust_events [--check]`.

Writes crates/events/src/lib.rs from the enums and flags of `events` and `qemu.plugin_protocol`.
With `--check` it only compares, and fails if they differ.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rtit.generated import write_or_check

HERE = Path(__file__).resolve().parent
TARGET = HERE.parents[2] / "crates" / "events" / "src" / "lib.rs"

_HEAD = """\
//! Capture events: the kinds and flags of the records in which tracers report what a program did.
//!
//! Generated: `python -m rtit.capture.rust_events`.

#![forbid(unsafe_code)]

/// Bytes of a record, little-endian: kind u8, flags u8, instruction length u16, tid u32; ip,
/// target, clock, extra u64.
pub const RECORD_SIZE: usize = 40;

"""

_FROM_U8 = """\
impl EventKind {
    /// Returns the kind with this number.
    pub fn from_u8(number: u8) -> Option<EventKind> {
        EventKind::ALL
            .get(usize::from(number).checked_sub(1)?)
            .copied()
    }

"""


class _Member(NamedTuple):
    name: str
    value: int
    doc: str


def _members(module: Path, name: str) -> Iterator[_Member]:
    """Yield the constants of a class with the strings that document them."""
    body = ast.parse(module.read_text(encoding="utf-8")).body
    (found,) = (node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    for node, after in zip(found.body, [*found.body[1:], None], strict=True):
        if not isinstance(node, ast.Assign):
            continue
        documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        doc = str(ast.literal_eval(after.value)) if documented else ""  # type: ignore[union-attr]
        target = ast.unparse(node.targets[0])
        yield _Member(target, int(ast.literal_eval(node.value)), " ".join(doc.split()))


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _comment(doc: str) -> str:
    lines = textwrap.wrap(doc, 110, break_long_words=False, break_on_hyphens=False)
    return "".join(f"    /// {line}\n" for line in lines)


def _enum(name: str, doc: str, members: Sequence[_Member]) -> str:
    variants = "".join(f"{_comment(m.doc)}    {_camel(m.name)} = {m.value},\n" for m in members)
    derive = "Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug"
    return (
        f"/// {doc}\n#[derive({derive})]\n#[repr(u8)]\npub enum {name} {{\n{variants}}}\n\n"
        f"impl From<{name}> for u8 {{\n    fn from(kind: {name}) -> u8 {{\n        kind as u8\n"
        "    }\n}\n\n"
    )


def render() -> str:
    """Return the text of the Rust file."""
    events, messages = HERE / "events.py", HERE / "qemu" / "plugin_protocol.py"
    kinds = [*_members(events, "EventKind")]
    parts = [
        _HEAD,
        _enum("EventKind", "What happened; the other fields depend on it.", kinds),
        _FROM_U8,
        "    /// All kinds, in the order of their numbers from 1.\n",
        f"    pub const ALL: [EventKind; {len(kinds)}] = [\n",
        *(f"        EventKind::{_camel(kind.name)},\n" for kind in kinds),
        "    ];\n}\n\n",
        _enum(
            "ResumeReason",
            "Why user code continues: the flags of `EventKind::Resume`.",
            [*_members(events, "ResumeReason")],
        ),
        _enum(
            "MessageKind",
            "Records of QEMU's plugin that are no capture events.",
            [*_members(messages, "PluginMessage")],
        ),
        "/// Bits of a record's flags. Each name begins with the kind of the record.\n",
        "pub mod flag {\n",
        *(
            f"{_comment(flag.doc)}    pub const {flag.name}: u8 = {flag.value};\n"
            for flag in _members(events, "Flag")
        ),
        "}\n",
    ]
    return "".join(parts)


def main(arguments: Sequence[str]) -> int:
    """Write or, with `--check`, compare. Returns the exit status: see `generated.write`."""
    return write_or_check(arguments, TARGET, render(), "rtit.capture.rust_events")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
