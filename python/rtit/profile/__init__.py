"""Profiles for other tools, from exact counts: of BOLT, AutoFDO, LLVM, pprof, callgrind, perf.

`profile` adds up what ran, binary by binary; a file each of the others writes one format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.lazy import exports

if TYPE_CHECKING:
    from rtit.profile.gather import Gathering, profile
    from rtit.profile.table import Binary, Edges, Losses, Profile

__all__ = ["Binary", "Edges", "Gathering", "Losses", "Profile", "profile"]

__getattr__ = exports(
    __name__, {"gather": "Gathering profile", "table": "Binary Edges Losses Profile"}
)
