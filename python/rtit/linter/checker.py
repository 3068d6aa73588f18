"""Apply all rules to a stream of packets.

Most packets are TNT and TIP. While nothing is pending, no rule concerns them, and they change
nothing that a later rule needs. `_StreamChecker.skip_harmless_packets` finds such packets with a
regular expression, which is ten times faster than checking each of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from rtit.linter.rules import (
    COMPOUND_EVENTS,
    FUP_ALONE,
    PACKET_RULES,
    POSITION_RULES,
    SEQUENCE_RULES,
    Finding,
    PendingObligations,
    Rule,
)
from rtit.linter.stream_state import StreamState
from rtit.packets import PSB, BadBytes, Packet, scan_chunks
from rtit.packets.table import BY_FIRST_BYTE, DECLARATIONS, IP_PAYLOAD

if TYPE_CHECKING:
    from typing_extensions import Buffer

DECODABLE_BYTES = Rule("packet", "33.4.2", "the bytes are a packet", ("SKD007", "SKZ84"))

RULES = (
    DECODABLE_BYTES,
    *(check.rule for check in (*PACKET_RULES, *POSITION_RULES)),
    FUP_ALONE,
    *(
        each.rule
        for follow in (COMPOUND_EVENTS, *SEQUENCE_RULES)
        for each in follow.rules_in_sequence()
    ),
)
"""Every rule."""

_CHUNK_SIZE = 1 << 20
_RULES_BY_PACKET = {
    row.name: [check for check in (*PACKET_RULES, *POSITION_RULES) if row.name in check.names]
    for row in DECLARATIONS
}


def lint(
    data: Buffer | Iterable[Buffer], *, psb_period: int | None = None, errata: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield the violations of the chapter's rules (`RULES`) in a PT stream, in stream order.

    data: the bytes, or chunks of them in order. They must begin with a packet, and may end
    anywhere. psb_period: bytes between PSBs (IA32_RTIT_CTL.PSBFreq); without it the largest period
    is assumed. errata: names of `rtit.registers.errata` that the processor has; findings that they
    excuse are left out.

    After bytes that are not a packet, checking continues at the next PSB. The program's code is not
    read: a stream is legal if some program and settings can produce it.
    """
    excused = frozenset(errata)
    checker = _StreamChecker(psb_period)
    for item in scan_chunks(_split_into_chunks(data), checker.skip_harmless_packets):
        for finding in checker.check_item(item):
            if excused.isdisjoint(finding.rule.errata):
                yield finding


def _split_into_chunks(data: Buffer | Iterable[Buffer]) -> Iterator[Buffer]:
    try:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # an iterable raises TypeError
    except TypeError:
        yield from data  # type: ignore[misc]  # an iterable of buffers
    else:
        yield from (view[start : start + _CHUNK_SIZE] for start in range(0, len(view), _CHUNK_SIZE))


def _harmless_packets() -> re.Pattern[bytes]:
    """Return a pattern of packets without findings in a steady state (`StreamState.is_steady`):
    TNT, TIP that keeps the upper bits of LastIP or sign-extends the IP, CYC of one byte with
    cycles. The last packet is no CYC.
    """
    cyc, branch = [], []
    for first in range(256):
        names = [row.name for row in BY_FIRST_BYTE[first]]
        byte = re.escape(bytes((first,)))
        if names == ["TNT"] and first >> 1 > 1:
            branch.append(byte)
        elif names == ["TIP"] and (ip_bytes := first >> 5) in (1, 2, 3, 4):
            branch.append(byte + b".{%d}" % IP_PAYLOAD.sizes[ip_bytes])
        elif names == ["CYC"] and first & 4 == 0 and first >> 3:
            cyc.append(byte)
    pattern = b"(?:(?:%s)*+(?:%s))++" % (b"|".join(cyc), b"|".join(branch))
    return re.compile(pattern, re.DOTALL)


_HARMLESS_PACKETS = _harmless_packets()


class _StreamChecker:
    """The state of the stream at a packet, and the obligations that are still pending."""

    def __init__(self, psb_period: int | None) -> None:
        self.state = StreamState(psb_period)
        self.obligations = PendingObligations()

    def skip_harmless_packets(self, window: bytearray, offset: int, limit: int) -> int:
        """Return the end of the packets from `offset` on that no rule concerns, at most `limit`."""
        if not self.state.is_steady() or self.obligations.due:
            return offset
        run = _HARMLESS_PACKETS.match(window, offset, limit)
        # bytes of a payload may be part of a PSB, which `scan_chunks` decides
        if run is None or window.find(PSB[:2], offset, run.end() + 1) >= 0:
            return offset
        self.state.previous = "TNT"  # or TIP: the rules only ask whether it was a CYC
        return run.end()

    def check_item(self, item: Packet | BadBytes) -> Iterator[Finding]:
        if isinstance(item, BadBytes):
            if not item.truncated:
                yield Finding(item.offset, DECODABLE_BYTES, "", item.reason)
            self.state = StreamState(self.state.psb_period, self.state.psb)
            self.obligations = PendingObligations()
            return
        for check in _RULES_BY_PACKET[item.name]:
            if broken := check.broken(item, self.state):
                detail = broken if isinstance(broken, str) else ""
                yield Finding(item.offset, check.rule, item.name, detail)
        begins = yield from self.obligations.check_packet(item, self.state)
        self.state.apply_packet(item, begins_event=begins)
