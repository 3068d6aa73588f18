"""Instructions by function: each counts for the function that is at its address at that time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rtit.packets import encode, encode_tnt
from rtit.trace import Trace
from support.recordings import Recorder

core = pytest.importorskip("rtit._core", reason="the native module is not built")

BASE = 0x1000
FOREVER = (1 << 64) - 1


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def totals(stream: bytes, code: Any, regions: list[Any]) -> dict[tuple[str, str], int]:
    flow = core.StreamDecoder(stream, code)
    found = {(name, path): count for name, path, count in flow.functions(core.Names(regions))}
    assert sum(found.values()) == flow.counts()["instructions"]
    return found


def test_straight_code_across_functions_counts_for_both() -> None:
    code = core.Space()
    code.map(0, BASE, bytes.fromhex("909090" + "75fb"))  # 1000 nop; nop; nop; 1003 jnz 1000
    regions = [
        (BASE, BASE + 2, 0, FOREVER, 0, "/bin/first", None),
        (BASE + 2, BASE + 3, 0, 500, 0, "/bin/second", None),
        (BASE + 2, BASE + 3, 500, FOREVER, 0, "/bin/third", None),
    ]
    stream = encode("PSB") + b"\x99\x01" + encode("PSBEND") + ip_packet("TIP.PGE", BASE)
    stream += encode_tnt(5, 0b11111) + encode("TSC", tsc=500) + encode_tnt(3, 0b111)
    assert totals(stream, code, regions) == {
        ("", "/bin/first"): 16,
        ("", "/bin/second"): 5,
        ("", "/bin/third"): 3,
        ("", ""): 8,
    }


def test_changed_code_counts_for_its_own_function() -> None:
    code = core.Space()
    code.map(0, BASE, bytes.fromhex("9090" + "75fc"))  # nop; nop; jnz 1000
    code.poke(500, BASE, bytes.fromhex("6690"))  # one nop of two bytes
    code.poke(900, BASE, bytes.fromhex("9090"))
    halves = [(BASE + at, BASE + at + 1, 0, FOREVER, 0, str(at), None) for at in range(4)]
    stream = encode("PSB") + b"\x99\x01" + encode("PSBEND") + ip_packet("TIP.PGE", BASE)
    stream += encode_tnt(2, 0b11) + encode("TIP.PGD", ip_bytes=0)
    for tsc, rounds in ((500, 3), (900, 4)):
        stream += encode("TSC", tsc=tsc) + ip_packet("TIP.PGE", BASE)
        stream += encode_tnt(rounds, (1 << rounds) - 1) + encode("TIP.PGD", ip_bytes=0)
    # a TIP.PGD ends each part at the branch
    assert totals(stream, code, halves) == {("", "0"): 12, ("", "1"): 8, ("", "2"): 12}


def test_counts_by_function_of_a_recording_equal_its_instructions(record: Recorder) -> None:
    live = record([Path("/bin/echo"), "hello"])
    with Trace(live.data) as trace:
        [stream] = trace.streams
        expected: Counter[tuple[str, str]] = Counter()
        for part in stream.instructions():
            numbers, _ = trace.symbols.lookup_many(stream.tid, part.time, part.ip)
            expected.update(trace.symbols.table[number] for number in numbers)
        found = stream.native_decoder().functions(trace.symbols.names(stream.tid))
        assert {(name, path): count for name, path, count in found} == expected
