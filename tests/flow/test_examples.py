"""The examples of the chapter: the printed streams decode to the paths in the text."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import pytest

from rtit.packets import encode, encode_cyc

core = pytest.importorskip("rtit._core", reason="the native module is not built")

START = 1 << 20  # TSC at the first packet; a core cycle is a tick


class DecodedExample(NamedTuple):
    """IPs, (start, time) of each run and (kind, ip, value, time) of each event; times from START.

    A not-taken branch does not end a run.
    """

    ips: list[int]
    runs: list[tuple[int, int]]
    events: list[tuple[str, int, int, int]]


def decode_example(
    stream: str | bytes, code: dict[int, str], ip: int | None, mode: int = 1
) -> DecodedExample:
    space = core.Space()
    for address, text in code.items():
        space.map(0, address, bytes.fromhex(text))
    head = encode("PSB") + encode("TSC", tsc=START) + encode("CBR", ratio=10) + bytes([0x99, mode])
    head += b"" if ip is None else encode("FUP", ip_bytes=6, payload=ip)
    head += encode("PSBEND")
    data = head + (bytes.fromhex(stream) if isinstance(stream, str) else stream)
    settings = {"max_nonturbo_ratio": 10}

    flow = core.StreamDecoder(data, space, **settings)
    ips = array("Q")
    while (part := flow.instructions(100)) is not None:
        ips.extend(part["ip"])
    assert [row[2] for row in flow.ledger()] == ["exact"]

    flow = core.StreamDecoder(data, space, **settings)
    runs: list[tuple[int, int]] = []
    events: list[tuple[str, int, int, int]] = []
    while (rows := flow.rows(100)) is not None:
        starts, times = array("Q", rows["start"]), array("Q", rows["time"])
        runs += [(start, time - START) for start, time in zip(starts, times, strict=True)]
        columns = [array("Q", rows[f"event_{name}"]) for name in ("ip", "value", "time")]
        for kind, at, value, time in zip(rows["event_kind"], *columns, strict=True):
            events.append((flow.EVENTS[kind], at, value, time - START))
    return DecodedExample(list(ips), runs, events)


@pytest.mark.spec("GOLD-001", "CYC-008", "CYC-015")
def test_example_33_1_decodes_to_its_text() -> None:
    # 1000 call rax; 1100 call rax; 1200 jnz 1280; 1202 ret; 1102 jnz 1180; 1180 ret; 5000 mov cr3
    code = {
        0x1000: "ffd0",
        0x1100: "ffd0 757c",
        0x1180: "c3",
        0x1200: "757e c3",
        0x5000: "0f22d8",
    }
    stream = "27 06  2d 00 11"  # CYC(100), the example's x
    stream += "13 2d 00 12  33  16  43 2d 00 50  ff fe  17 01 04  df fa 02 43 00 45 23 01 00 00"
    found = decode_example(stream + "3d 03 50 01", code, 0x1000)
    assert found.ips == [0x1000, 0x1100, 0x1200, 0x1202, 0x1102, 0x1180, 0x5000]
    # the CYC before the TNT is the time of its first branch, a lower bound for the others
    assert found.runs == [
        (0x1000, 0),
        (0x1100, 100),
        (0x1200, 102),
        (0x1102, 108),
        (0x1180, 108),
        (0x5000, 116),
    ]
    assert ("paging", 0, 0x12345000, 116 + 4095 + 8194 + 4027) in found.events


@pytest.mark.spec("GOLD-002", "CYC-008")
def test_example_33_2_decodes_to_its_text() -> None:
    # 1000 call 2000; 1005 jnz 1080; 1080 jmp eax; 2000 jnz 2080; 2002 ret; 3000 jnz; 3002 int 20h
    code = {
        0x1000: "e8fb0f0000 7579",
        0x1080: "ffe0",
        0x2000: "757e c3",
        0x3000: "757e cd20",
        0x8000: "90",
    }
    stream = "47 0c 16  4b 2d 00 30  1b 04  3d 02 30"  # CYC(200) TNT, CYC(9) TIP, CYC(3) TNT, FUP
    stream += "53 02 43 00 77 00 00 00 00  a3 99 00 2d 00 80"  # CYC(10) PIP, CYC(20) MODE.Exec TIP
    found = decode_example(stream + "3d 01 80 01", code, 0x1000, mode=2)
    # the INT has not retired: the task gate took its place
    assert found.ips == [0x1000, 0x2000, 0x2002, 0x1005, 0x1080, 0x3000, 0x8000]
    assert found.runs[-2:] == [(0x3000, 209), (0x8000, 242)]
    assert ("paging", 0, 0x77000, 222) in found.events
    assert ("async", 0x3002, 0x8000, 242) in found.events


# Table 33-13: times of the eight packets (the fifth is the PIP), and which had a CYC.
AT = [0, 9, 15, 30, 38, 46, 64, 71]
THRESHOLDS = [
    pytest.param(AT, AT, id="0", marks=pytest.mark.spec("GOLD-003")),
    pytest.param(
        [0, 30, 46, 64],
        [0, 0, 0, 30, 30, 46, 64, 64],
        id="16",
        marks=pytest.mark.spec("GOLD-004", "CYC-017"),
    ),
    pytest.param(
        [0, 38, 71], [0, 0, 0, 0, 38, 38, 38, 71], id="32", marks=pytest.mark.spec("GOLD-005")
    ),
    pytest.param([0, 64], [0, 0, 0, 0, 0, 0, 64, 64], id="64", marks=pytest.mark.spec("GOLD-006")),
]


@pytest.mark.parametrize(("present", "known"), THRESHOLDS)
def test_table_33_13_times_are_those_of_the_last_cyc(present: list[int], known: list[int]) -> None:
    """The time of the last CYC is exact for its packet and a lower bound until the next CYC."""
    targets = [0x2000, 0x2100, 0x2200, 0x2300, 0, 0x2400, 0x2500, 0x2600]
    code = {0x1000: "ffe0", 0x2000: "ffd0", 0x2100: "ffd0", 0x2200: "ffe0", 0x2300: "0f22d8 ffe0"}
    code |= {0x2400: "ffd0", 0x2500: "ffe0", 0x2600: "90"}
    stream, last = b"", -1000
    for at, target in zip(AT, targets, strict=True):
        if at in present:
            stream += encode_cyc(at - last)
            last = at
        if target:
            stream += encode("TIP", ip_bytes=1, payload=target)
        else:
            stream += encode("PIP", nr=0, cr3=0x9000)
    found = decode_example(stream + bytes.fromhex("3d0126 01"), code, 0x1000)
    pip = known[4]
    times = known[:4] + known[5:]
    # The MOV to CR3 ends a row. No packet leads to the next one: its time is a lower bound.
    after_mov = found.runs.pop(5)
    assert after_mov[0] == 0x2303
    assert found.runs[4][1] <= after_mov[1] <= 1000 + pip
    assert found.runs[1:] == [
        (target, 1000 + time) for target, time in zip(filter(None, targets), times, strict=True)
    ]
    assert ("paging", 0, 0x9000, 1000 + pip) in found.events


@pytest.mark.spec("GOLD-007")
def test_table_33_2_code_outside_the_filter_is_not_needed() -> None:
    # RangeBase 2000, RangeLimit 2fff: jcc not taken, then jmp 3000; no code outside is needed
    code = {0x2000: "7510 909090 e9f60f0000"}
    found = decode_example("99 01 31 00 20  04  21 00 30", code, None)
    assert found.ips == [0x2000, 0x2002, 0x2003, 0x2004, 0x2005]
    assert [event[:3] for event in found.events if event[0] in ("enabled", "disabled")] == [
        ("enabled", 0x2000, 0),
        ("disabled", 0x2005, 0x3000),
    ]


@pytest.mark.spec("GOLD-008", "GOLD-009", "DTIP-002")
@pytest.mark.parametrize(
    "stream",
    ["04 2d 08 13  14 2d 00 11  04 3d 0c 11 2d 00 cc", "48 2d 08 13 2d 00 11 3d 0c 11 2d 00 cc"],
    ids=["in order", "deferred"],
)
def test_table_33_19_deferred_tips_decode(stream: str) -> None:
    # foo at 1000, bar at 1308, baz at 1500, qux at 1100; the branch of 1314 is taken, to 1500
    code = {
        0x1000: "4885c990 0f85f20f0000 ffe2",  # 1004 jnz 1ffc; 100a jmp rdx
        0x1308: "4885c990 0f85ea0c0000 9090 0f85e0010000",  # 130c jnz; 1314 jnz 14fa
        0x14FA: "eb04",
        0x1500: "85c09090 7f7a 9090 41ffe7",  # 1504 jg; 1508 jmp r15
        0x1100: "4885db90 7ffa 9090 4801c8 90",  # 1104 jg; 110c is next when the interrupt comes
        0xCC00: "5a",
    }
    found = decode_example(stream + "3d 01 cc 01", code, 0x1000)
    assert found.ips == [
        0x1000, 0x1003, 0x1004, 0x100A,
        0x1308, 0x130B, 0x130C, 0x1312, 0x1313, 0x1314, 0x14FA,
        0x1500, 0x1502, 0x1503, 0x1504, 0x1506, 0x1507, 0x1508,
        0x1100, 0x1103, 0x1104, 0x1106, 0x1107, 0x1108, 0x110B,
        0xCC00,
    ]  # fmt: skip
    kind = next(event for event in found.events if event[0] == "async")
    assert kind[1:3] == (0x110C, 0xCC00)
