"""Rows and events, and their order."""

from __future__ import annotations

import numpy as np
import pytest

from rtit import _core
from rtit.packets import encode
from rtit.trace import Counts, End, ErrorClass, Event, EventKind, Rows
from support.streams import SYNC, make_stream

CODE = {0x1000: "90 ffd0", 0x2000: "7402 90 90 c3", 0x5000: "90 ffe0"}
"""1000 nop; 1001 call rax; 2000 jz 2004; 2002 nop; 2003 nop; 2004 ret; 5000 nop; 5001 jmp rax"""


def tip(ip: int) -> bytes:
    return encode("TIP", ip_bytes=6, payload=ip)


def joined(packets: bytes, code: dict[int, str] = CODE) -> tuple[list[Rows], Counts]:
    plain = make_stream(packets, code)
    return list(plain.rows()), plain.counts()


@pytest.mark.parametrize(
    ("category", "names"),
    [
        (End, _core.StreamDecoder.ENDS),
        (EventKind, _core.StreamDecoder.EVENTS),
        (ErrorClass, _core.StreamDecoder.ERRORS),
    ],
)
def test_categories_equal_native_names(
    category: type[End | EventKind | ErrorClass], names: dict[int, str]
) -> None:
    assert {each.value: each.label for each in category} == names


def test_event_row_counts_started_rows() -> None:
    """The path: a call, a taken branch, an interrupt before the return, which leads to 5000."""
    interrupt = encode("FUP", ip_bytes=6, payload=0x2004)
    packets = tip(0x2000) + encode("TNT", bits="T") + interrupt + tip(0x5000)
    [rows], counts = joined(packets + encode("CBR", ratio=7) + tip(0x1000))
    assert rows.first == 0
    assert rows.start.tolist() == [0x1000, 0x2000, 0x5000]
    assert rows.instructions.tolist() == [2, 1, 2]
    assert rows.last.tolist() == [0x1001, 0x2000, 0x5001]
    assert [End(end) for end in rows.end] == [End.INDIRECT_CALL, End.CONDITIONAL, End.INDIRECT_JUMP]
    kinds = [(event.kind, event.ip, event.value) for event in rows.events]
    assert kinds[-2:] == [(EventKind.ASYNC, 0x2004, 0x5000), (EventKind.CBR, 0, 7)]
    struck, changed = list(rows.events)[-2:]
    # Two rows before both: only the next TIP shows that the third ran.
    assert (struck.row, changed.row) == (2, 2)
    assert isinstance(struck, Event)
    at = len(SYNC + tip(0x2000)) + 1
    assert struck.offset in (at, at + len(interrupt))
    assert rows.events.kind[rows.events.kind == EventKind.ASYNC].tolist() == [3]
    assert (counts.instructions, counts.asynchronous) == (5, 1)
    assert repr(rows) == f"<Rows 0 to 3: 5 instructions, {len(rows.events)} events>"
    assert repr(rows.events) == f"<Events: {len(rows.events)}>"


def test_columns_have_their_types_and_one_length() -> None:
    [rows], _ = joined(tip(0x2000) + encode("TNT", bits="N"))
    for name, kind in (("start", "u8"), ("instructions", "u4"), ("last", "u8"), ("end", "u1"),
                       ("time", "u8"), ("offset", "u8")):  # fmt: skip
        column = getattr(rows, name)
        assert (column.dtype, len(column)) == (np.dtype(f"<{kind}"), len(rows))
    events = rows.events
    for name, kind in (("row", "u8"), ("kind", "u1"), ("ip", "u8"), ("value", "u8"),
                       ("time", "u8"), ("offset", "u8")):  # fmt: skip
        column = getattr(events, name)
        assert (column.dtype, len(column)) == (np.dtype(f"<{kind}"), len(events))


def test_first_continues_across_batches() -> None:
    """An event's row counts from the start of the stream, as `first` does."""
    loop = {0x1000: "ffe0"}  # jmp rax
    count = 70_000
    packets = (tip(0x1000) + encode("PTW", ip=0, payload_bytes=0, payload=9)) * count
    chunks, counts = joined(packets, loop)
    assert len(chunks) > 1
    assert counts.instructions == count
    first = 0
    written: list[int] = []
    for rows in chunks:
        assert rows.first == first
        first += len(rows)
        events = rows.events
        written += events.row[events.kind == EventKind.PTWRITE].tolist()
    assert first == count
    assert written == list(range(1, count + 1))


def test_counts_of_a_stream_equal_its_branches_and_packets() -> None:
    packets = tip(0x2000) + encode("TNT", bits="T") + tip(0x1002) + b"\x47"
    [rows], counts = joined(packets)
    assert (counts.conditional, counts.indirect, counts.returns) == (1, 1, 1)
    assert counts.branches == 3
    assert counts.compressed_returns == 0
    assert counts.cycles == 0
    assert counts.packets["TIP"] == 2
    assert counts.exact_bytes + counts.resumed_bytes + counts.lost_bytes == len(SYNC + packets)
    assert sum(counts.errors.values()) == 1
    error = next(event for event in rows.events if event.kind == EventKind.ERROR)
    assert ErrorClass(error.value).label in counts.errors
    with pytest.raises(AttributeError):
        counts.instructions = 5  # type: ignore[misc]
