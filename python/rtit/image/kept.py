"""Files that travel with a recording, instead of those of the machine that it is looked at on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["missing", "changed", "truncated", "unreadable"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the bytes of a mapped file are not known.

    `path` is the recorded path, `message` one sentence, `value` the bad value (a build id, a size
    in bytes) or None.
    """

    kind: Kind
    path: str
    message: str
    value: str | int | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Kept:
    """A recorded file: `file` is its copy and `debug` that of its debug file, each None if there is
    none. `name` is what the file was called where it was copied, `problem` why it was not. The
    copies are there as long as `owner` is, which is kept with whatever may read in them later.
    """

    name: str
    file: str | None = None
    debug: str | None = None
    problem: Problem | None = None
    owner: object = field(default=None, compare=False, repr=False)


Key = tuple[str, str]
"""A recorded path, and the build id that the recording has for it, hexadecimal, "" without one."""
KeptFiles = Mapping[Key, Kept]


def key(path: str, build_id: bytes | None) -> Key:
    """What a mapped file is found by."""
    return path, (build_id or b"").hex()
