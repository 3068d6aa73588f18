"""Where an interrupt, a fault and a software interrupt say that they happened (Table 33-23), held
against the code of real programs: nobody has told the recorder.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import rtit
from rtit.scenario.model import PacketLine, PacketLineReader
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]
Recorded = Callable[[str], tuple[Path, list[PacketLine]]]


@pytest.fixture
def recorded(program: ProgramBuilder, record: Recorder) -> Recorded:
    """A program by name, and its packets without those of time."""

    def packets(name: str) -> tuple[Path, list[PacketLine]]:
        path = program(name)
        with rtit.Trace(record([path]).data) as trace:
            (stream,) = trace.streams
            lines = PacketLineReader().read(b"".join(map(bytes, stream.source.chunks())))
        return path, [line for line in lines if line.name not in ("TSC", "TMA", "MTC", "CBR")]

    return packets


def code_at(path: Path, address: int, size: int) -> bytes:
    """Bytes of a program without relocations, by the program headers of its ELF file."""
    data = path.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 32)
    entry_size, count = struct.unpack_from("<HH", data, 54)
    for number in range(count):
        kind, _, offset, start, _, length = struct.unpack_from(
            "<IIQQQQ", data, table + number * entry_size
        )
        if kind == 1 and start <= address < start + length:
            return data[offset + address - start :][:size]
    raise ValueError(f"no code at {address:#x}")


def event_ips(lines: list[PacketLine]) -> list[int]:
    """The IPs of FUPs with which the kernel is entered."""
    return [
        int(fup.values[0])
        for fup, end in pairwise(lines)
        if (fup.name, end.name, end.values) == ("FUP", "TIP.PGD", ())
    ]


@pytest.mark.spec("TAB23-003")
def test_a_software_interrupt_is_at_its_own_instruction(recorded: Recorded) -> None:
    """Five times INT3 and once INT 3; what is on the stack is the next instruction."""
    path, lines = recorded("int3_own")
    found = [code_at(path, ip, 2) for ip in event_ips(lines)]
    assert [code[:1] for code in found[:5]] == [b"\xcc"] * 5
    assert found[5:] == [b"\xcd\x03"]


@pytest.mark.spec("TAB23-002")
def test_a_fault_is_at_the_instruction_that_faults(recorded: Recorded) -> None:
    path, lines = recorded("crash_ud2")
    assert [code_at(path, ip, 2) for ip in event_ips(lines)] == [b"\x0f\x0b"]


@pytest.mark.spec("TAB23-001")
def test_an_interrupt_is_at_the_next_instruction(recorded: Recorded) -> None:
    """There the program goes on when the handler of each of the three ticks has returned, of which
    some may come in system calls.
    """
    _, lines = recorded("signal_async")
    ips = event_ips(lines)
    assert 1 <= len(ips) <= 3
    for ip in ips:
        at = lines.index(PacketLine("FUP", (ip,)))
        begins = [line.values[0] for line in lines[at:] if line.name == "TIP.PGE"]
        assert begins[1] == ip
