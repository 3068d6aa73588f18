"""Converts TSC packets of virtual machines to the host's TSC, machine by machine.

In VMX non-root operation a TSC packet has the guest's TSC: the host's TSC times a multiplier plus
an offset, both from the VMCS (section 33.8.3.3). The last VMCS packet says which guest runs, and
the last PIP whether a guest runs at all; within a PSB+ those of the same PSB+ count.
`HostTimeSource` rewrites the packets before anything else reads them, like `perf inject
--vm-time-correlation`.

`guest_offsets` computes unknown offsets. A TMA packet links a TSC packet to the crystal clock,
which is not virtualized. Each pair of a host's and a guest's TSC with TMA therefore gives an
offset, and the one that more than half of the pairs agree on is taken.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from rtit.errors import UsageError
from rtit.trace.recording.decoder_settings import Settings, check_settings
from rtit.trace.tables.packets import PACKET_KINDS, packet_batches

if TYPE_CHECKING:
    from rtit.trace.recording.byte_source import ByteSource


Scaling = tuple[int, int]
"""Offset, and multiplier in units of 2**-48."""
GuestTsc = Scaling | Mapping[int, Scaling] | Literal["auto"]
"""The TSC of guests: one scaling for all; one for each VMCS pointer; or computed."""

_KINDS = ("PSB", "PSBEND", "OVF", "PIP", "VMCS", "TSC", "TMA")
_TSC_BITS = 56
_TSC_SIZE = 8
_CTC_BITS = 16
_MAX_PENDING = 64
"""TSC packets of one PSB+, or between two TSC packets of the host; no valid trace has more."""
_MAX_GUESTS, _MAX_SAMPLES = 1 << 10, 1 << 9
_ROUNDING = 2
"""Ticks by which equal offsets may differ."""


def check_guest_tsc(given: GuestTsc) -> None:
    """Raise UsageError for values that a VMCS cannot have."""
    if isinstance(given, str):
        if given != "auto":
            raise UsageError(f"guest_tsc is {given!r}: it must be numbers, or 'auto'")
    elif not isinstance(given, Mapping):
        check_settings(Settings(guest_tsc=given))
    else:
        for vmcs, scaling in given.items():
            check_settings(Settings(guest_tsc=scaling))
            if not isinstance(vmcs, int):
                raise UsageError(f"guest_tsc of VMCS {vmcs!r}: that must be a number")
            if not scaling[1] or not 0 <= vmcs < 1 << 64:
                raise UsageError(f"guest_tsc of VMCS {vmcs:#x}: it cannot be {scaling}")


class _TscSample(NamedTuple):
    """A TSC packet with the CTC and FastCounter of the TMA after it; None without one."""

    offset: int
    tsc: int
    vmcs: int | None
    """Of the guest that ran; None: the host ran."""
    tma: tuple[int, int] | None


class HostTimeSource:
    """A source that converts TSC packets of the guests in `guests` (by VMCS pointer)."""

    def __init__(self, source: ByteSource, guests: Mapping[int, Scaling]) -> None:
        self.source = source
        self._guests = guests

    @property
    def size(self) -> int:
        """Bytes of PT."""
        return self.source.size

    def chunks(self) -> Iterator[memoryview]:
        """Yield all bytes, with converted TSC packets."""
        payloads = self._converted_payloads()
        pending: deque[tuple[int, bytes]] = deque()
        """Payloads that are not yet written, or that reach into the next chunk."""
        start, searched_to = 0, 0
        for chunk in self.source.chunks():
            end = start + len(chunk)
            while searched_to < end:
                found = next(payloads, None)
                searched_to = end if found is None else found[0]
                if found is not None:
                    pending.append(found)
            changed = bytearray(chunk)
            while pending and pending[0][0] < end:
                offset, payload = pending[0]
                for at, byte in enumerate(payload, offset):
                    if start <= at < end:
                        changed[at - start] = byte
                if offset + len(payload) > end:
                    break
                pending.popleft()
            yield memoryview(changed)
            start = end

    def _converted_payloads(self) -> Iterator[tuple[int, bytes]]:
        """Offset and new payload of each TSC packet of a guest."""
        for each in _tsc_packets(self.source):
            scaling = self._guests.get(each.vmcs) if each.vmcs is not None else None
            if scaling is None:
                continue
            offset, multiplier = scaling
            host = (each.tsc - offset) % (1 << _TSC_BITS)
            host = (host << 48) // multiplier % (1 << _TSC_BITS)
            yield each.offset + 1, host.to_bytes(_TSC_SIZE - 1, "little")


def guest_offsets(source: ByteSource, tsc_ctc: tuple[int, int]) -> dict[int, int]:
    """Return the TSC offset of each unscaled guest by VMCS pointer, accurate to some ticks.

    `tsc_ctc`: TSC ticks for each crystal tick, as a fraction. A guest has no offset if there are no
    TMA packets, if so much time passed between TSC packets of the host that CTC wrapped, or if no
    offset has more than half of the samples, those two ticks away included. Of several such offsets
    the most frequent counts, then the smallest. The first 512 samples of the first 1,024 guests are
    used.
    """
    offset_counts: dict[int, Counter[int]] = {}
    host: _TscSample | None = None
    guests: list[_TscSample] = []
    """Since the last TSC packet of the host."""
    for each in _tsc_packets(source):
        if each.vmcs is not None:
            guests = [*guests[-_MAX_PENDING:], each]
            continue
        for guest in guests:
            offset = _guest_tsc_offset(host, guest, each, tsc_ctc) if host is not None else None
            if offset is None or guest.vmcs is None:
                continue
            if guest.vmcs in offset_counts or len(offset_counts) < _MAX_GUESTS:
                counts = offset_counts.setdefault(guest.vmcs, Counter())
                counts[offset] += counts.total() < _MAX_SAMPLES
        guests = []
        host = each
    found = {vmcs: _majority_offset(counts) for vmcs, counts in offset_counts.items()}
    return {vmcs: offset for vmcs, offset in found.items() if offset is not None}


def _majority_offset(counts: Counter[int]) -> int | None:
    """Return the offset with more than half of the samples."""

    def samples_near_offset(offset: int) -> int:
        near = range(-_ROUNDING, _ROUNDING + 1)
        return sum(counts[(offset + by) % (1 << _TSC_BITS)] for by in near)

    found = [offset for offset in counts if 2 * samples_near_offset(offset) > counts.total()]
    return min(found, key=lambda offset: (-counts[offset], offset), default=None)


def _guest_tsc_offset(
    host: _TscSample, guest: _TscSample, later: _TscSample, tsc_ctc: tuple[int, int]
) -> int | None:
    """Return the offset of a guest's TSC packet between two of the host; None if unknown."""
    numerator, denominator = tsc_ctc
    if host.tma is None or guest.tma is None or not (numerator and denominator):
        return None
    wrap = (numerator << _CTC_BITS) // denominator
    if (later.tsc - host.tsc) % (1 << _TSC_BITS) >= wrap:
        return None
    crystal_ticks = (guest.tma[0] - host.tma[0]) % (1 << _CTC_BITS)
    passed = crystal_ticks * numerator // denominator + guest.tma[1] - host.tma[1]
    return (guest.tsc - host.tsc - passed) % (1 << _TSC_BITS)


def _tsc_packets(source: ByteSource) -> Iterator[_TscSample]:
    """Yield the TSC packets in order, each with its guest."""
    import numpy as np

    kinds = [PACKET_KINDS.index(name) for name in _KINDS]
    psb, psbend, ovf, pip, vmcs, tsc, tma = kinds
    in_guest, pointer, in_psb_plus = False, None, False
    pending: list[_TscSample] = []
    """In a PSB+ all TSC packets wait for its PIP and VMCS; otherwise one waits for its TMA."""

    def take_pending_sample() -> list[_TscSample]:
        found, pending[:] = list(pending), []
        current = pointer if in_guest else None
        return [each._replace(vmcs=current) for each in found] if in_psb_plus else found

    for batch in packet_batches(source.chunks()):
        is_needed = np.isin(batch.kind, kinds)
        columns = (batch.kind, batch.detail, batch.offset, batch.payload)
        for kind, detail, offset, payload in zip(
            *(column[is_needed].tolist() for column in columns), strict=True
        ):
            if kind == tma:
                if pending:
                    pending[-1] = pending[-1]._replace(tma=(payload & 0xFFFF, payload >> 16))
                continue
            # Outside of a PSB+ the TMA follows directly.
            if not in_psb_plus or kind in (psb, psbend, ovf) or len(pending) > _MAX_PENDING:
                yield from take_pending_sample()
            if kind == pip:
                in_guest = bool(detail & 1)
            elif kind == vmcs:
                pointer = payload
            elif kind == tsc:
                pending.append(_TscSample(offset, payload, pointer if in_guest else None, None))
            else:
                in_psb_plus = kind == psb
    yield from take_pending_sample()
