"""IPs of interrupts, faults and software interrupts (Table 33-23) in recordings of real
programs.

The programs' own code gives the expected IPs, not the recorder.
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
PacketRecorder = Callable[[str], tuple[Path, list[PacketLine]]]


@pytest.fixture
def record_packets(program: ProgramBuilder, record: Recorder) -> PacketRecorder:
    """Records a program by name; returns its path and its packets, without time packets."""

    def packets(name: str) -> tuple[Path, list[PacketLine]]:
        path = program(name)
        with rtit.Trace(record([path]).data) as trace:
            (stream,) = trace.streams
            lines = PacketLineReader().read_complete_packets(
                b"".join(map(bytes, stream.source.chunks()))
            )
        return path, [line for line in lines if line.name not in ("TSC", "TMA", "MTC", "CBR")]

    return packets


def read_code(path: Path, address: int, size: int) -> bytes:
    """Return code of a program without relocations, by the program headers of its ELF file."""
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


def ips_of_kernel_entries(lines: list[PacketLine]) -> list[int]:
    """Return the IPs of the FUPs that precede an entry into the kernel."""
    return [
        int(fup.values[0])
        for fup, end in pairwise(lines)
        if (fup.name, end.name, end.values) == ("FUP", "TIP.PGD", ())
    ]


@pytest.mark.spec("TAB23-003")
def test_software_interrupt_ip_is_the_int_instruction(record_packets: PacketRecorder) -> None:
    """The program runs INT3 five times and INT 3 once; the IP on the stack would be the next
    one.
    """
    path, lines = record_packets("int3_own")
    found = [read_code(path, ip, 2) for ip in ips_of_kernel_entries(lines)]
    assert [code[:1] for code in found[:5]] == [b"\xcc"] * 5
    assert found[5:] == [b"\xcd\x03"]


@pytest.mark.spec("TAB23-002")
def test_fault_ip_is_the_faulting_instruction(record_packets: PacketRecorder) -> None:
    path, lines = record_packets("crash_ud2")
    assert [read_code(path, ip, 2) for ip in ips_of_kernel_entries(lines)] == [b"\x0f\x0b"]


@pytest.mark.spec("TAB23-001")
def test_interrupt_ip_is_the_next_instruction(record_packets: PacketRecorder) -> None:
    """The program continues there after the handler of each of three ticks.

    Some ticks may arrive in system calls.
    """
    _, lines = record_packets("signal_async")
    ips = ips_of_kernel_entries(lines)
    assert 1 <= len(ips) <= 3
    for ip in ips:
        at = lines.index(PacketLine("FUP", (ip,)))
        begins = [line.values[0] for line in lines[at:] if line.name == "TIP.PGE"]
        assert begins[1] == ip
