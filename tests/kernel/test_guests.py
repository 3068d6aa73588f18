"""Kernels of virtual machines: what runs while NR is 1 has another kernel's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel import recording
from kernel.recording import KERNEL_SIZE, KernelWriter
from rtit.cli.main import main
from rtit.image import KernelFiles
from rtit.packets import encode
from rtit.perfdata import Switches, records
from rtit.trace import Trace

AT = 0xFFFF_FFFF_8100_0000
HOST = bytes.fromhex("90 0f01c2 90 90 c3")
"""nop; vmlaunch; nop; nop; ret."""
GUEST = bytes.fromhex("6690 90 c3")
HOST_CR3, GUEST_CR3 = 0x10_0000, 0x20_0000


def tip(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def pip(cr3: int, nr: int) -> bytes:
    return encode("PIP", cr3=cr3, nr=nr)


def trace() -> bytes:
    """The host's kernel enters the guest, which leaves it at its second instruction."""
    return (
        encode("PSB")
        + encode("TSC", tsc=20)
        + b"\x99\x01"
        + pip(HOST_CR3, 0)
        + encode("PSBEND")
        + tip("TIP.PGE", AT)
        + pip(GUEST_CR3, 1)
        + tip("TIP", AT)
        + pip(HOST_CR3, 0)
        + tip("FUP", AT + 2)
        + tip("TIP", AT + 4)
        + tip("FUP", AT + 5)
        + encode("TIP.PGD", ip_bytes=0)
    )


RAN = [(AT, "host"), (AT + 1, "host"), (AT, "guest"), (AT + 4, "host")]


def core(code: bytes) -> bytes:
    """A copy of memory with this code, the rest of which is zeros."""

    class Memory:
        at = {recording.REF: AT}  # noqa: RUF012
        booted = {AT: code}  # noqa: RUF012

    return recording.kcore(Memory())  # type: ignore[arg-type]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    data = tmp_path / "perf.data"
    with KernelWriter(
        data, config=0x2401, cpuid="GenuineIntel,6,94,3", switches=Switches.WIDE, kernel=True
    ) as out:
        out.kernel_map(AT, KERNEL_SIZE, AT, "[kernel.kallsyms]_text")
        place = (-1, 0, AT, KERNEL_SIZE, AT)
        name, misc = b"[guest.kernel.kallsyms.500]_text", records.Misc.GUEST_KERNEL
        sample = out._sample_id(-1, 0, 0, 2)
        out._append(records.Mmap, *place, tail=name, misc=misc, sample_id=sample)
        out.itrace_start(500, 500, 2)
        out.auxtrace(-1, -1, trace(), None, 3_000, cpu=0)
    (tmp_path / "host").write_bytes(core(HOST))
    (tmp_path / "guest").write_bytes(core(GUEST))
    (tmp_path / "names").write_text(f"{AT:x} T guest_text\n")
    return data


def test_each_kernel_has_its_code(recorded: Path, tmp_path: Path) -> None:
    files = KernelFiles(kcore=str(tmp_path / "host"))
    guest = KernelFiles(kcore=str(tmp_path / "guest"), kallsyms=str(tmp_path / "names"))
    with Trace(recorded, kernel=files, guest=guest) as trace:
        (stream,) = trace.streams
        assert [int(ip) for part in stream.instructions() for ip in part.ip] == [
            ip for ip, _ in RAN
        ]
        assert [(span.kind, span.error) for span in stream.ledger()] == [("exact", "")]


def test_by_options(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["instructions", str(recorded), "--kcore", str(tmp_path / "host"), "--guest-kcore"]
    words += [str(tmp_path / "guest"), "--guest-kallsyms", str(tmp_path / "names")]
    assert main([*words, "--fields", "ip,sym"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = [(int(ip, 16), "guest" if "guest" in name else "host") for ip, name in lines]
    assert found == RAN


def test_a_guest_of_which_nothing_is_known(recorded: Path, tmp_path: Path) -> None:
    """The host's code is never taken for it."""
    with Trace(recorded, kernel=KernelFiles(kcore=str(tmp_path / "host"))) as trace:
        (stream,) = trace.streams
        ips = [int(ip) for part in stream.instructions() for ip in part.ip]
        assert ips == [ip for ip, whose in RAN if whose == "host"]
        assert any(span.is_gap for span in stream.ledger())
