"""Address filters in the kernel's text form, which perf also writes into AUXTRACE_INFO.

    filter|stop <offset>/<size>[@<file>]

A text has one or more filters, separated by commas or white space. Each is one address range of
section 33.2.5.3 (ADDRn_CFG, ADDRn_A and ADDRn_B).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rtit.errors import PerfDataError

FILTER_EN = 1
TRACE_STOP = 2

_MAX_ADDRESS = 1 << 64
_NUMBER = r"0[xX][0-9a-fA-F]+|[1-9][0-9]*|0"
_FILTER = re.compile(
    rf"(filter|stop|tracestop)[ \t\n]+({_NUMBER})[ \t\n]*/[ \t\n]*({_NUMBER})"
    r"(?:[ \t\n]*@[ \t\n]*([^ ,\t\n]+))?(?=[ ,\t\n]|$)"
)
_SEPARATOR = re.compile(r"[ ,\t\n]*")


@dataclass(frozen=True, slots=True)
class AddressFilter:
    """One address range of one file.

    `action` is "filter" (trace inside only) or "stop" (TraceStop inside), the kernel's words;
    `path` is the file's real path; `offset` (in the file) and `size` are in bytes, size > 0. A
    filter of kernel code has path "" and an address in place of the offset. `is_linked`: it is the
    address as linked, and the kernel moves itself.
    """

    action: str
    path: str
    offset: int
    size: int
    is_linked: bool = False

    @property
    def addr_cfg(self) -> int:
        """ADDRn_CFG of IA32_RTIT_CTL: 1 FilterEn range, 2 TraceStop range (section 33.2.8.2)."""
        return FILTER_EN if self.action == "filter" else TRACE_STOP

    @property
    def kernel_form(self) -> str:
        """The text that perf passes to the kernel and writes into the recording."""
        file = f"@{self.path}" if self.path else ""
        return f"{self.action} {self.offset:#x}/{self.size:#x}{file}"

    def moved(self, distance: int) -> AddressFilter:
        """Return the filter after the kernel has moved itself by `distance` bytes."""
        offset = (self.offset + distance) % _MAX_ADDRESS if self.is_linked else self.offset
        return AddressFilter(self.action, self.path, offset, self.size)

    def addresses(self, address: int, pgoff: int, size: int, path: str) -> tuple[int, int] | None:
        """Return ADDRn_A and ADDRn_B (both inclusive) in a mapping of `size` bytes at `address`.

        The mapping shows `path` from byte `pgoff` on. None if it shows nothing of the range.
        """
        first = max(self.offset, pgoff)
        end = min(self.offset + self.size, pgoff + size)
        if path != self.path or first >= end:
            return None
        return address + first - pgoff, address + end - pgoff - 1


def format_address_filters(filters: Iterable[AddressFilter]) -> str | None:
    """Return all filters as one text; None without any."""
    return ",".join(each.kernel_form for each in filters) or None


def parse_address_filters(text: str) -> list[AddressFilter]:
    """Return the filters of a text. Raises PerfDataError if the kernel would not accept it."""
    found = []
    at = _end_of_match(_SEPARATOR.match(text))
    while at < len(text):
        match = _FILTER.match(text, at)
        if match is None:
            raise PerfDataError(
                f"no range at character {at} of the address filter", value=repr(text)
            )
        action, start, length, path = match.groups()
        offset, size = int(start, 0), int(length, 0)
        if not 0 < size <= _MAX_ADDRESS - offset:
            raise PerfDataError(f"bad range: {size:#x} bytes from {offset:#x}", value=repr(text))
        found.append(
            AddressFilter("filter" if action == "filter" else "stop", path or "", offset, size)
        )
        at = _end_of_match(_SEPARATOR.match(text, match.end()))
    if not found:
        raise PerfDataError("the address filter has no range", value=repr(text))
    return found


def _end_of_match(match: re.Match[str] | None) -> int:
    return match.end() if match else 0
