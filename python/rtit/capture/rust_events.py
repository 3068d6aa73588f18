"""The Rust form of the capture events: `python -m rtit.capture.rust_events [--check]`.

Writes crates/events/src/kinds.rs from the enums and flags of `events` and `qemu.plugin_protocol`.
With `--check` it only compares, and fails if they differ.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from rtit.capture.events import EventFlag, EventKind, ResumeReason
from rtit.capture.qemu.plugin_protocol import PluginMessage
from rtit.generated_files import write_or_check_generated_file

TARGET = Path(__file__).resolve().parents[3] / "crates" / "events" / "src" / "kinds.rs"

_HEAD = """\
//! Kinds and flags of records. Generated: `python -m rtit.capture.rust_events`.

macro_rules! kinds {
    ($name:ident { $($kind:ident = $number:literal,)* }) => {
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum $name {
            $($kind = $number,)*
        }

        impl From<$name> for u8 {
            fn from(kind: $name) -> u8 {
                kind as u8
            }
        }

        impl $name {
            /// Returns the kind with this number.
            pub fn from_u8(number: u8) -> Option<$name> {
                match number {
                    $($number => Some($name::$kind),)*
                    _ => None,
                }
            }
        }
    };
}
"""


def _render_rust_enum(name: str, members: type[IntEnum]) -> str:
    variants = "".join(
        f"    {''.join(map(str.capitalize, each.name.split('_')))} = {each.value},\n"
        for each in members
    )
    return f"\nkinds! {{ {name} {{\n{variants}}}}}\n"


def render_rust_events() -> str:
    """Return the text of the Rust file."""
    flags = (name for name in vars(EventFlag) if name.isupper())
    return "".join(
        [
            _HEAD,
            _render_rust_enum("EventKind", EventKind),
            _render_rust_enum("ResumeReason", ResumeReason),
            _render_rust_enum("MessageKind", PluginMessage),
            "\n/// Bits of a record's flags. Each name begins with the kind of the record.\n",
            "pub mod flag {\n",
            *(f"    pub const {name}: u8 = {getattr(EventFlag, name)};\n" for name in flags),
            "}\n",
        ]
    )


def main(arguments: Sequence[str]) -> int:
    """Write or, with `--check`, compare. Returns the exit status: see `generated.write`."""
    return write_or_check_generated_file(
        arguments, TARGET, render_rust_events(), "rtit.capture.rust_events"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
