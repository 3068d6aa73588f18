"""Finds the calls that had not returned at the end of a path: what `bt` shows there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rtit.trace import End

if TYPE_CHECKING:
    from rtit.gdb.thread_path import ThreadPath
    from rtit.image import Image

_MAX_INSTRUCTION_BYTES = 15
END_OF_TIME = (1 << 64) - 1
_CALLS = (End.CALL, End.INDIRECT_CALL)
_MAX_UNWOUND_CALLS = 64
"""A RET to none of the innermost callers is a jump and ends no call."""


def open_call_returns(path: ThreadPath, image: Image, limit: int) -> list[int]:
    """Return the return addresses of at most `limit` open calls, the innermost first.

    Calls before the start of the path are unknown.
    """
    open_returns: list[int] = []
    return_addresses: dict[int, int] = {}  # of calls, by IP
    for row in np.flatnonzero(np.isin(path.end, (*_CALLS, End.RETURN)) | path.gap_after).tolist():
        last = int(path.last[row])
        if path.gap_after[row]:
            open_returns.clear()
        elif path.end[row] != End.RETURN:
            if last not in return_addresses:
                following = next_ip(image, last, int(path.time[row]))
                if following is None:
                    continue
                return_addresses[last] = following
            open_returns.append(return_addresses[last])
        else:
            target = int(path.start[row + 1]) if row + 1 < len(path.start) else path.next_ip
            innermost = open_returns[-_MAX_UNWOUND_CALLS:]
            if target is not None and target in innermost:
                del open_returns[len(open_returns) - 1 - innermost[::-1].index(target) :]
    return open_returns[: -limit - 1 : -1]


def next_ip(image: Image, ip: int, time: int = END_OF_TIME) -> int | None:
    """Return the IP of the instruction after the one at `ip`; None if its code is unknown."""
    from rtit._core import decode_instruction

    try:
        return ip + decode_instruction(image.read(ip, _MAX_INSTRUCTION_BYTES, time=time), ip)[0]
    except ValueError:
        return None
