"""A stream decodes from plain values alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rtit.errors import PerfDataError
from rtit.image import Image
from rtit.packets import BadBytes, encode
from rtit.trace import BranchKind, Settings, Stream
from support.streams import SYNC, ChunkedBytes, make_stream

CODE = {0x1000: "ffd0", 0x2000: "7402 90 90 ffe0"}
"""1000 call rax; 2000 jz 2004; 2002 nop; 2003 nop; 2004 jmp rax"""


def test_stream_yields_the_rows_of_a_short_program() -> None:
    packets = encode("TIP", ip_bytes=6, payload=0x2000) + encode("TNT", bits="N")
    packets += encode("TIP", ip_bytes=6, payload=0x1000)
    plain = make_stream(packets, CODE)
    assert plain.size == len(SYNC + packets)
    assert plain.read() == SYNC + packets
    ips = plain.instructions().columns()["ip"]
    # Of the call at 1000 no packet says that it ran a second time.
    assert ips.tolist() == [0x1000, 0x2000, 0x2002, 0x2003, 0x2004]
    assert sum(int(rows.instructions.sum()) for rows in plain.rows()) == 5
    assert [span.kind for span in plain.ledger()] == ["exact"]


def test_stream_without_settings_has_packets_only() -> None:
    why = PerfDataError("no Intel PT event describes the trace", source="x")
    packets_alone = Stream(ChunkedBytes(SYNC), Image(), why)
    names = [each.name for each in packets_alone.scan() if not isinstance(each, BadBytes)]
    assert names == ["PSB", "TSC", "CBR", "MODE.Exec", "FUP", "PSBEND"]
    for _ in range(2):
        with pytest.raises(PerfDataError, match="no Intel PT event"):
            packets_alone.native_decoder()


@pytest.mark.parametrize(
    ("cpu", "tid", "name", "part", "title"),
    [
        (-1, 7, None, 0, "thread 7"),
        (-1, 7, "ls", 0, "thread 7 (ls)"),
        (-1, 7, "ls", 2, "thread 7 (ls), part 2"),
        (3, 7, "ls", 0, "cpu 3, thread 7 (ls)"),
    ],
)
def test_titles_name_process_thread_and_cpu(
    cpu: int, tid: int, name: str | None, part: int, title: str
) -> None:
    assert stream_of(cpu, tid, name, part).title == title


def stream_of(cpu: int, tid: int, name: str | None, part: int) -> Stream:
    whole = make_stream(b"", {})
    return Stream(whole.source, whole.image, whole.settings, cpu, tid, tid, name, part)


def test_totals_count_runs_and_edges() -> None:
    # Twice jz taken and once not, three times the call at 1000.
    call = encode("TIP", ip_bytes=6, payload=0x2000)
    back = encode("TIP", ip_bytes=6, payload=0x1000)
    packets = b"".join(call + encode("TNT", bits=bits) + back for bits in "TNT")
    for walk in (False, True):
        plain = make_stream(packets, CODE)
        assert isinstance(plain.settings, Settings)
        plain.settings = replace(plain.settings, walk=walk)
        totals = plain.totals()
        runs = zip(totals.runs.start, totals.runs.instructions, totals.runs.count, strict=True)
        assert list(runs) == [(0x1000, 1, 3), (0x2000, 1, 3), (0x2002, 3, 1), (0x2004, 1, 2)]
        edges = plain.edges()
        names = [BranchKind(kind).label for kind in edges.kind]
        assert list(zip(edges.source, edges.target, names, edges.count, strict=True)) == [
            (0x1000, 0x2000, "indirect call", 3),
            (0x2000, 0x2002, "not taken", 1),
            (0x2000, 0x2004, "conditional", 2),
            (0x2004, 0x1000, "indirect jump", 3),
        ]
        assert plain.counts().instructions == 3 + 3 + 3 + 2
        assert len(totals.runs) == len(totals.edges) == 4
