"""A stream as lines: the text follows the mode, the time and the state of the code."""

from __future__ import annotations

from typing import Any

import pytest

from rtit.packets import encode, encode_tnt

core = pytest.importorskip("rtit._core", reason="the native module is not built")

BASE = 0x1000


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def psb(mode: int = 1, tsc: int = 0) -> bytes:
    return encode("PSB") + encode("TSC", tsc=tsc) + bytes([0x99, mode]) + encode("PSBEND")


def space(code: str, base: int = BASE) -> Any:
    made = core.Space()
    made.map(0, base, bytes.fromhex(code))
    return made


def list_stream(stream: bytes, code: Any, fields: str, **options: Any) -> Any:
    flow = core.StreamDecoder(stream, code)
    names = core.Names(options.pop("regions", []))
    flow.start_listing(core.Listing(fields.split(","), code, names, tid=7, **options))
    return flow


def lines(stream: bytes, code: Any, fields: str = "asm", **options: Any) -> list[str]:
    flow = list_stream(stream, code, fields, **options)
    text = b""
    while (part := flow.lines(1)) is not None:
        assert part[0].count(b"\n") == part[1]
        text += part[0]
    return [line.strip() for line in text.decode().splitlines()]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # 48 40 90: one instruction of 64-bit code, three of 32-bit and 16-bit code
        (1, ["nop", "jmp"]),
        (2, ["dec eax", "inc eax", "nop", "jmp"]),
        (0, ["dec ax", "inc ax", "nop", "jmp"]),
    ],
)
def test_disassembly_follows_the_execution_mode(mode: int, expected: list[str]) -> None:
    stream = psb(mode) + bytes([0x99, mode]) + ip_packet("TIP.PGE", BASE)
    stream += encode("TIP.PGD", ip_bytes=6, payload=BASE)
    found = lines(stream, space("484090ebfb"))
    assert found[:-1] == expected[:-1]
    assert found[-1].startswith(expected[-1])
    assert found[-1].endswith("0x1000")


def rounds(count: int) -> bytes:
    return b"".join(encode_tnt(1, 1) for _ in range(count))


def test_changed_code_is_disassembled_again() -> None:
    # 1000 nop; 1001 jnz 1000
    code = space("9075fd")
    code.poke(500, BASE, b"\xf8")  # clc
    code.poke(900, BASE, b"\x90")
    stream = psb() + ip_packet("TIP.PGE", BASE) + rounds(2) + encode("TIP.PGD", ip_bytes=0)
    stream += encode("TSC", tsc=500) + ip_packet("TIP.PGE", BASE) + rounds(1)
    stream += encode("TIP.PGD", ip_bytes=0)
    stream += encode("TSC", tsc=900) + ip_packet("TIP.PGE", BASE) + rounds(1)
    firsts = lines(stream, code)[::2]
    assert firsts == ["nop", "nop", "nop", "clc", "clc", "nop"]


def test_symbol_changes_with_time() -> None:
    regions = [
        (BASE, BASE + 0x1000, 0, 500, 0x40, "first", None),
        (BASE, BASE + 0x1000, 500, 1 << 63, 0, "se\x1bcond", None),
    ]
    code = space("9075fd")
    stream = psb() + ip_packet("TIP.PGE", BASE) + rounds(1) + encode("TIP.PGD", ip_bytes=0)
    stream += encode("TSC", tsc=500) + ip_packet("TIP.PGE", BASE) + encode("TIP.PGD", ip_bytes=0)
    found = lines(stream, code, "sym", regions=regions)
    assert found == ["first+0x40", "first+0x41"] * 2 + ["se\\x1bcond+0x0", "se\\x1bcond+0x1"]


def test_lines_have_fields_in_the_requested_order() -> None:
    code = space("90ffe0")
    stream = psb(tsc=0x1234) + ip_packet("TIP.PGE", BASE) + ip_packet("TIP", BASE)
    flow = list_stream(stream, code, "time,tid,ip,asm")
    text, count = flow.lines(1 << 20)
    assert count == 2
    expected = ["nop", "jmp rax"]
    wanted = [f"{0x1234:15} {7:7} {BASE + i:16x} {asm}\n" for i, asm in enumerate(expected)]
    assert text.decode() == "".join(wanted)
    # only bits of the product above `shift` count
    flow = list_stream(stream, code, "ip,time", clock=(2, 6, 1000))
    assert flow.lines(1)[0].decode().splitlines()[0] == f"{BASE:16x} {1000 + 0x1234 * 6 // 4:15}"


def test_packet_of_many_instructions_is_split_into_batches() -> None:
    # 3000 nops and a jump back: 47 rounds in one packet, again and again
    code = space("90" * 3000 + "0f8542f4ffff")
    stream = psb() + ip_packet("TIP.PGE", BASE) + encode_tnt(47, (1 << 47) - 1, long=True) * 40
    flow = list_stream(stream, code, "tid,ip,sym,asm")
    count = 0
    most = 1 << 16
    while (part := flow.lines(most)) is not None:
        # a transition has at most 512 instructions
        assert len(part[0]) < most + 512 * 64
        count += part[1]
    assert count == 40 * 47 * 3001


def test_head_tail_and_ranges_limit_lines() -> None:
    code = space("909090" + "75fb")  # 1000 nop; nop; nop; 1003 jnz 1000
    stream = psb() + ip_packet("TIP.PGE", BASE)
    for tsc in (100, 200, 300):
        stream += encode("TSC", tsc=tsc) + rounds(2)
    every = lines(stream, code, "time,ip")
    assert len(every) == 24
    for tail in (0, 1, 5, 24, 30):
        assert lines(stream, code, "time,ip", tail=tail) == every[max(0, 24 - tail) :]
    assert lines(stream, code, "time,ip", times=(100, 199)) == [
        line for line in every if line.startswith("100 ")
    ]
    some = [(BASE + 1, BASE + 2, 0, 1 << 63), (BASE + 3, BASE + 4, 150, 250)]
    found = lines(stream, code, "ip", ranges=[some], tail=3)
    # code decoded before the third TSC ran before 250
    assert found == ["1003", "1001", "1001"]
    assert lines(stream, code, "ip", ranges=[some]).count("1003") == 2
    flow = list_stream(stream, code, "time,ip")
    assert flow.next_time() == 0
    head = flow.lines(1 << 20, 5)
    assert head == flow_text(every[:5])
    assert flow.lines(1 << 20, until=100)[1] == sum(line[:3].strip() < "101" for line in every) - 5


def flow_text(rows: list[str]) -> tuple[bytes, int]:
    text = "".join(f"{row.split()[0]:>15} {row.split()[1]:>16}\n" for row in rows)
    return text.encode(), len(rows)


def test_flow_cannot_mix_lines_and_rows() -> None:
    code = space("90")
    flow = list_stream(psb(), code, "ip")
    with pytest.raises(ValueError, match="other results"):
        flow.rows(1)
    with pytest.raises(ValueError, match="start_listing was not called"):
        core.StreamDecoder(psb(), code).lines(1)
    with pytest.raises(ValueError, match="no field"):
        core.Listing(["colour"], code, core.Names([]), tid=1)
