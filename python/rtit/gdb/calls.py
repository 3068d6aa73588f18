"""Which calls had not returned at the end of a path: what `bt` shows there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rtit.trace import End

if TYPE_CHECKING:
    from rtit.gdb.path import Path
    from rtit.image import Image

_LONGEST = 15
FOREVER = (1 << 64) - 1
_CALLS = (End.CALL, End.INDIRECT_CALL)
_NEAR = 64
"""A return to none of so many callers is no end of a call: it jumps."""


def callers(path: Path, image: Image, most: int) -> list[int]:
    """Where the calls that are open return to, the innermost first, `most` at most. Calls before
    the path are not known.
    """
    open_: list[int] = []
    behind: dict[int, int] = {}  # a call, and where it returns to
    for row in np.flatnonzero(np.isin(path.end, (*_CALLS, End.RETURN)) | path.broken).tolist():
        last = int(path.last[row])
        if path.broken[row]:
            open_.clear()
        elif path.end[row] != End.RETURN:
            if last not in behind:
                following = next_ip(image, last, int(path.time[row]))
                if following is None:
                    continue
                behind[last] = following
            open_.append(behind[last])
        else:
            target = int(path.start[row + 1]) if row + 1 < len(path.start) else path.next
            near = open_[-_NEAR:]
            if target is not None and target in near:
                del open_[len(open_) - 1 - near[::-1].index(target) :]
    return open_[: -most - 1 : -1]


def next_ip(image: Image, ip: int, time: int = FOREVER) -> int | None:
    """The IP of the instruction behind that at `ip`; None if its bytes are not known."""
    from rtit._core import decode_instruction

    try:
        return ip + decode_instruction(image.read(ip, _LONGEST, time=time), ip)[0]
    except ValueError:
        return None
