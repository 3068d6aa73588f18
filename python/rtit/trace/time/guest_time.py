"""TSC packets of virtual machines as the host's, where a machine's offset goes by its VMCS.

In VMX non-root operation a TSC packet has what the guest sees: the host's TSC times a multiplier,
plus an offset, both in the VMCS (section 33.8.3.3). Whose guest it is the last VMCS packet says,
and PIP whether it is one; within PSB+ those of the same PSB+ hold. Here the packets are rewritten
before anything reads them, each in its place, as `perf inject --vm-time-correlation` does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from rtit.errors import UsageError
from rtit.trace.recording.settings import Settings, checked
from rtit.trace.tables.packets import KINDS, packets

if TYPE_CHECKING:
    from rtit.trace.recording.byte_source import Source


Scaling = tuple[int, int]
"""Offset, and multiplier in units of 2**-48."""
GuestTsc = Scaling | Mapping[int, Scaling] | Literal["auto"]
"""What guests see of the TSC: all the same; each by its VMCS; to be found."""

_KINDS = ("PSB", "PSBEND", "OVF", "PIP", "VMCS", "TSC", "TMA")
_TSC_BITS = 56
_TSC_SIZE = 8
_CTC_BITS = 16
_MOST = 64
"""TSCs of a PSB+, and more than any has."""
_MOST_GUESTS, _MOST_VOTES = 1 << 10, 1 << 9
_ROUNDING = 2
"""Ticks that votes for one offset may be apart."""


def check_guests(given: GuestTsc) -> None:
    """Raise UsageError for numbers that a VMCS cannot have."""
    if isinstance(given, str):
        if given != "auto":
            raise UsageError(f"guest_tsc is {given!r}: it is numbers, or 'auto'")
    elif not isinstance(given, Mapping):
        checked(Settings(guest_tsc=given))
    else:
        for vmcs, scaling in given.items():
            checked(Settings(guest_tsc=scaling))
            if not isinstance(vmcs, int):
                raise UsageError(f"guest_tsc of VMCS {vmcs!r}: that is a number")
            if not scaling[1] or not 0 <= vmcs < 1 << 64:
                raise UsageError(f"guest_tsc of VMCS {vmcs:#x}: it cannot be {scaling}")


class _Tsc(NamedTuple):
    """A TSC packet, and what the TMA behind it says: CTC and FastCounter; None without one."""

    offset: int
    tsc: int
    vmcs: int | None
    """Of the guest whose time it is; None: it is the host's."""
    tma: tuple[int, int] | None


class HostTime:
    """A source whose TSC packets of the guests in `guests`, by VMCS pointer, are the host's."""

    def __init__(self, source: Source, guests: Mapping[int, Scaling]) -> None:
        self.source = source
        self._guests = guests

    @property
    def size(self) -> int:
        """Bytes, as many as before."""
        return self.source.size

    def parts(self) -> Iterator[memoryview]:
        """All bytes, in parts."""
        ahead = self._rewritten()
        waiting: deque[tuple[int, bytes]] = deque()
        start, read = 0, 0
        for part in self.source.parts():
            end = start + len(part)
            while read < end:
                found = next(ahead, None)
                read = end if found is None else found[0]
                if found is not None:
                    waiting.append(found)
            changed = bytearray(part)
            while waiting and waiting[0][0] < end:
                place, data = waiting[0]
                for at, byte in enumerate(data, place):
                    if start <= at < end:
                        changed[at - start] = byte
                if place + len(data) > end:
                    break
                waiting.popleft()
            yield memoryview(changed)
            start = end

    def _rewritten(self) -> Iterator[tuple[int, bytes]]:
        """Places of payloads, and what they are to be."""
        for each in _times(self.source):
            scaling = self._guests.get(each.vmcs) if each.vmcs is not None else None
            if scaling is None:
                continue
            offset, multiplier = scaling
            host = (each.tsc - offset) % (1 << _TSC_BITS)
            host = (host << 48) // multiplier % (1 << _TSC_BITS)
            yield each.offset + 1, host.to_bytes(_TSC_SIZE - 1, "little")


def guest_offsets(source: Source, tsc_ctc: tuple[int, int]) -> dict[int, int]:
    """The TSC offsets of guests, taken not to be scaled, by VMCS pointer, to some ticks: what
    crystal clock a TSC belongs to the TMA behind it says, and that clock is the host's in guests,
    too. `tsc_ctc`: TSC ticks per crystal tick as a fraction. Of a guest where nothing tells there
    is none: without TMA, or where so long passed between times of the host that CTC began anew,
    or where no offset has more than half of the votes, those two ticks off counted with it. Of such
    the one with the most votes of its own counts, of several the smallest. The first 512 votes of
    each of the first 1,024 guests count.
    """
    votes: dict[int, Counter[int]] = {}
    host: _Tsc | None = None
    waiting: list[_Tsc] = []
    for each in _times(source):
        if each.vmcs is not None:
            waiting = [*waiting[-_MOST:], each]
            continue
        for guest in waiting:
            offset = _offset(host, guest, each, tsc_ctc) if host is not None else None
            if offset is None or guest.vmcs is None:
                continue
            if guest.vmcs in votes or len(votes) < _MOST_GUESTS:
                own = votes.setdefault(guest.vmcs, Counter())
                own[offset] += own.total() < _MOST_VOTES
        waiting = []
        host = each
    elected = {vmcs: _elected(found) for vmcs, found in votes.items()}
    return {vmcs: offset for vmcs, offset in elected.items() if offset is not None}


def _elected(votes: Counter[int]) -> int | None:
    """What more than half are for."""
    near = range(-_ROUNDING, _ROUNDING + 1)

    def total(offset: int) -> int:
        return sum(votes[(offset + by) % (1 << _TSC_BITS)] for by in near)

    found = [offset for offset in votes if 2 * total(offset) > votes.total()]
    return min(found, key=lambda offset: (-votes[offset], offset), default=None)


def _offset(host: _Tsc, guest: _Tsc, later: _Tsc, tsc_ctc: tuple[int, int]) -> int | None:
    numerator, denominator = tsc_ctc
    if host.tma is None or guest.tma is None or not (numerator and denominator):
        return None
    round_ = (numerator << _CTC_BITS) // denominator
    between = (later.tsc - host.tsc) % (1 << _TSC_BITS)
    if between >= round_:
        return None
    ticks = (guest.tma[0] - host.tma[0]) % (1 << _CTC_BITS)
    passed = ticks * numerator // denominator + guest.tma[1] - host.tma[1]
    return (guest.tsc - host.tsc - passed) % (1 << _TSC_BITS)


def _times(source: Source) -> Iterator[_Tsc]:
    """TSC packets in order, each with whose it is."""
    import numpy as np

    numbers = [KINDS.index(name) for name in _KINDS]
    psb, psbend, ovf, pip, vmcs, tsc, tma = numbers
    nr, pointer, in_group = False, None, False
    waiting: list[_Tsc] = []

    def told() -> list[_Tsc]:
        found, waiting[:] = list(waiting), []
        whose = pointer if nr else None
        return [each._replace(vmcs=whose) for each in found] if in_group else found

    for part in packets(source.parts()):
        which = np.isin(part.kind, numbers)
        columns = (part.kind, part.detail, part.offset, part.payload)
        for kind, detail, offset, payload in zip(
            *(c[which].tolist() for c in columns), strict=True
        ):
            if kind == tma:
                if waiting:
                    waiting[-1] = waiting[-1]._replace(tma=(payload & 0xFFFF, payload >> 16))
                continue
            # of a TSC that is alone its TMA comes right behind it
            if not in_group or kind in (psb, psbend, ovf) or len(waiting) > _MOST:
                yield from told()
            if kind == pip:
                nr = bool(detail & 1)
            elif kind == vmcs:
                pointer = payload
            elif kind == tsc:
                waiting.append(_Tsc(offset, payload, pointer if nr else None, None))
            else:
                in_group = kind == psb
    yield from told()
