"""Problems: why the bytes of a mapped file are unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["missing", "changed", "truncated", "unreadable"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the bytes of a mapped file are unknown.

    `path` is the recorded path, `message` one sentence, `value` the bad value (a build id, a size
    in bytes) or None.
    """

    kind: Kind
    path: str
    message: str
    value: str | int | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"
