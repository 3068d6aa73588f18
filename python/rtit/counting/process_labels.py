"""Labels of processes, which are the same in each run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from rtit.text_escaping import name_to_text

_CARGO_HASH = re.compile(r"-[0-9a-f]{16}")
"""Ends the names of the binaries that cargo builds; it changes with the compiler and its flags."""
_MAX_LABEL = 200


def test_label(argv: Sequence[str]) -> str | None:
    """Return `BINARY TEST` if a test binary of Rust runs one test: `BINARY --exact TEST ...`.

    cargo-nextest starts a process in this way for each test. Returns None for other programs.
    """
    names = [word for word in argv[1:] if not word.startswith("-")]
    if "--exact" not in argv or len(names) != 1:
        return None
    return name_to_text(f"{_program_name(argv)} {names[0]}")


def process_label(argv: Sequence[str]) -> str:
    """Return the label of a test, or the program without its folder and its arguments."""
    if not argv:
        return "unknown"
    if (test := test_label(argv)) is not None:
        return test
    label = shlex.join([_program_name(argv), *argv[1:]])
    return name_to_text(label if len(label) <= _MAX_LABEL else f"{label[:_MAX_LABEL]}...")


def _program_name(argv: Sequence[str]) -> str:
    """Return the name of the program's file, without the hash that cargo appends."""
    name = argv[0].rpartition("/")[2]
    found = _CARGO_HASH.search(name)
    return name[: found.start()] if found and found.end() == len(name) else name
