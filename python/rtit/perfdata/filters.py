"""Address filters as the kernel spells them, and as perf writes them into AUXTRACE_INFO.

    filter|stop <offset>/<size>[@<file>]

separated by commas or white space. Each is one range of section 33.2.5.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rtit.errors import PerfDataError

FILTER_EN = 1
TRACE_STOP = 2

_LIMIT = 1 << 64
_NUMBER = r"0[xX][0-9a-fA-F]+|[1-9][0-9]*|0"
_ONE = re.compile(
    rf"(filter|stop|tracestop)[ \t\n]+({_NUMBER})[ \t\n]*/[ \t\n]*({_NUMBER})"
    r"(?:[ \t\n]*@[ \t\n]*([^ ,\t\n]+))?(?=[ ,\t\n]|$)"
)
_BETWEEN = re.compile(r"[ ,\t\n]*")


@dataclass(frozen=True, slots=True)
class Filter:
    """One address range of one file.

    `action` is "filter" (trace inside only) or "stop" (TraceStop inside), the kernel's words;
    `path` is the file's real path; `offset` (in the file) and `size` are in bytes, size > 0. A
    filter of kernel code, in a recording made by perf, has path "" and an address for its offset.
    """

    action: str
    path: str
    offset: int
    size: int

    @property
    def addr_cfg(self) -> int:
        """ADDRn_CFG of IA32_RTIT_CTL: 1 FilterEn range, 2 TraceStop range (section 33.2.8.2)."""
        return FILTER_EN if self.action == "filter" else TRACE_STOP

    @property
    def kernel_form(self) -> str:
        """What perf hands to the kernel, and writes into the recording."""
        return f"{self.action} {self.offset:#x}/{self.size:#x}@{self.path}"

    def addresses(self, address: int, pgoff: int, size: int, path: str) -> tuple[int, int] | None:
        """ADDRn_A and ADDRn_B, both inclusive, for `size` bytes from `pgoff` of `path`.

        Cut to what the mapping shows; None if that is nothing of this range.
        """
        first = max(self.offset, pgoff)
        end = min(self.offset + self.size, pgoff + size)
        if path != self.path or first >= end:
            return None
        return address + first - pgoff, address + end - pgoff - 1


def kernel_form(filters: Iterable[Filter]) -> str | None:
    """All of them as one text; None without any."""
    return ",".join(each.kernel_form for each in filters) or None


def parse_kernel_form(text: str) -> list[Filter]:
    """Filters back from `kernel_form`s joined by commas or spaces.

    Raises PerfDataError for anything else: no kernel has been given that.
    """
    found = []
    at = _end(_BETWEEN.match(text))
    while at < len(text):
        one = _ONE.match(text, at)
        if one is None:
            raise PerfDataError(
                f"character {at} of the address filter begins no range", value=repr(text)
            )
        action, start, length, path = one.groups()
        offset, size = int(start, 0), int(length, 0)
        if not 0 < size <= _LIMIT - offset:
            raise PerfDataError(f"no range: {size:#x} bytes from {offset:#x}", value=repr(text))
        found.append(Filter("filter" if action == "filter" else "stop", path or "", offset, size))
        at = _end(_BETWEEN.match(text, one.end()))
    if not found:
        raise PerfDataError("the address filter has no range", value=repr(text))
    return found


def _end(match: re.Match[str] | None) -> int:
    return match.end() if match else 0
