"""Code of the kernels of virtual machines, which runs while NR is 1."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kernel import made, recording
from kernel.recording import KERNEL_SIZE
from kernel.writer import KernelWriter
from rtit.cli.main import main
from rtit.image import Images, KernelFiles
from rtit.packets import encode
from rtit.perfdata import SwitchRecords, records
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


def trace(start: int = AT, end: int = AT + 2) -> bytes:
    """Encode a path where the host's kernel enters the guest at `start` and the guest exits at
    `end`.
    """
    return (
        encode("PSB")
        + encode("TSC", tsc=20)
        + b"\x99\x01"
        + pip(HOST_CR3, 0)
        + encode("PSBEND")
        + tip("TIP.PGE", AT)
        + pip(GUEST_CR3, 1)
        + tip("TIP", start)
        + pip(HOST_CR3, 0)
        + tip("FUP", end)
        + tip("TIP", AT + 4)
        + tip("FUP", AT + 5)
        + encode("TIP.PGD", ip_bytes=0)
    )


RAN = [(AT, "host"), (AT + 1, "host"), (AT, "guest"), (AT + 4, "host")]


def core(code: bytes) -> bytes:
    """Return a copy of memory with this code; the rest is zeros."""

    class Memory:
        at = {recording.REF: AT}  # noqa: RUF012
        booted = {AT: code}  # noqa: RUF012

    return recording.kcore(Memory())  # type: ignore[arg-type]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    data = write(tmp_path / "perf.data", trace())
    (tmp_path / "host").write_bytes(core(HOST))
    (tmp_path / "guest").write_bytes(core(GUEST))
    (tmp_path / "names").write_text(f"{AT:x} T guest_text\n")
    return data


def write(data: Path, packets: bytes, guest: str = "[guest.kernel.kallsyms.500]_text") -> Path:
    """Write a recording of process 500, which is a virtual machine."""
    with KernelWriter(
        data,
        config=0x2401,
        cpuid="GenuineIntel,6,94,3",
        switches=SwitchRecords.CPU_WIDE,
        kernel=True,
    ) as out:
        out.kernel_map(AT, KERNEL_SIZE, AT, "[kernel.kallsyms]_text")
        mapping = (-1, 0, AT, KERNEL_SIZE, AT)
        misc, sample = records.Misc.GUEST_KERNEL, out._sample_id(-1, 0, 0, 2)
        if guest:
            out._append_record(
                records.Mmap, *mapping, tail=guest.encode(), misc=misc, sample_id=sample
            )
        out.itrace_start(500, 500, 2)
        out.auxtrace(-1, -1, packets, None, 3_000, cpu=0)
    return data


def test_each_guest_kernel_has_its_code(recorded: Path, tmp_path: Path) -> None:
    files = KernelFiles(kcore=str(tmp_path / "host"))
    guest = KernelFiles(kcore=str(tmp_path / "guest"), kallsyms=str(tmp_path / "names"))
    with Trace(recorded, kernel=files, guest=guest) as trace:
        (stream,) = trace.streams
        assert [int(ip) for part in stream.instructions() for ip in part.ip] == [
            ip for ip, _ in RAN
        ]
        assert [(span.kind, span.error) for span in stream.ledger()] == [("exact", "")]


def test_guest_kernel_code_is_read_from_files_of_options(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["instructions", str(recorded), "--kcore", str(tmp_path / "host"), "--guest-kcore"]
    words += [str(tmp_path / "guest"), "--guestkallsyms", str(tmp_path / "names")]
    assert main([*words, "--fields", "ip,sym"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = [(int(ip, 16), "guest" if "guest" in name else "host") for ip, name in lines]
    assert found == RAN


def test_unknown_guest_kernel_has_no_code(recorded: Path, tmp_path: Path) -> None:
    """The host's code never replaces it."""
    with Trace(recorded, kernel=KernelFiles(kcore=str(tmp_path / "host"))) as trace:
        (stream,) = trace.streams
        ips = [int(ip) for part in stream.instructions() for ip in part.ip]
        assert ips == [ip for ip, owner in RAN if owner == "host"]
        assert any(span.is_gap for span in stream.ledger())


@pytest.mark.parametrize("record", ["[guest.kernel.kallsyms.500]_text", ""])
def test_guest_kernel_files_are_found_in_the_guest_mount(
    record: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """perf-kvm(1), --guestmount: one folder for each virtual machine, named after its process."""
    data = write(tmp_path / "perf.data", trace(), record)
    (tmp_path / "host").write_bytes(core(HOST))
    for machine, code in (("500", GUEST), ("501", HOST), ("other", HOST)):
        proc = tmp_path / "mount" / machine / "proc"
        proc.mkdir(parents=True)
        (proc / "kcore").write_bytes(core(code))
        (proc / "kallsyms").write_text(f"{AT:x} T _text\n{AT + 0x1000:x} D _etext\n")
    brought = ["--kcore", str(tmp_path / "host"), "--guestmount", str(tmp_path / "mount")]
    shown = ["--fields", "ip,sym"]
    assert main(["instructions", str(data), *brought, *shown]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    # the host has no symbols
    found = [(int(ip, 16), "guest" if name == "_text" else "host") for ip, name in lines]
    assert found == RAN
    pack = str(tmp_path / "pack")
    assert main(["pack", str(data), *brought, "-o", pack]) == 0
    shutil.rmtree(tmp_path / "mount")
    (tmp_path / "host").unlink()
    capsys.readouterr()
    assert main(["instructions", pack, *shown]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == lines


def test_guest_kernel_code_is_read_from_vmlinux(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With perf's names: the kernel has no record and is where kallsyms says; a module is where the
    copy of /proc/modules says. The files at the same paths of this machine differ.
    """
    moved = made.MOVED + made.kernel().symbols["_text"]
    at = {name: address + made.MOVED for name, address in made.kernel().symbols.items()}
    (tmp_path / "host").write_bytes(core(HOST))
    (tmp_path / "modules").write_text(f"made 12288 0 - Live {made.MODULE:#x}\n")
    (tmp_path / "names").write_text(f"{moved:x} T _text\n{at['_etext']:x} T _etext\n")
    words = ["--kcore", str(tmp_path / "host"), "--guestvmlinux", str(made.kernel().path)]
    words += ["--guestkallsyms", str(tmp_path / "names")]
    words += ["--guestmodules", str(tmp_path / "modules"), "--fields", "ip"]
    for number, (start, ran, folder) in enumerate(
        [
            (at["helper"], [0, 2], True),
            (made.MODULE, [0, 5], True),
            (made.MODULE, [], False),
        ]
    ):
        end = start + (6 if start == made.MODULE else 2)
        data = write(tmp_path / f"{number}.data", trace(start, end), "")
        more = ["--guest-kernel-modules", str(made.module().parent)] if folder else []
        code = main(["instructions", str(data), *words, *more])
        found = [int(line, 16) for line in capsys.readouterr().out.split()]
        guests = [ip for ip in found if ip not in (AT, AT + 1, AT + 4)]
        assert guests == [start + mapping for mapping in ran if start + mapping < end], number
        assert bool(code) is (not folder)


def test_symbols_are_of_running_kernel(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(subcommand: str, *more: str) -> list[list[str]]:
        words = [str(recorded), "--kcore", str(tmp_path / "host")]
        words += ["--guest-kcore", str(tmp_path / "guest")]
        words += ["--guestkallsyms", str(tmp_path / "names")]
        assert main([subcommand, *words, *more]) == 0
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    found = lines("instructions", "--fields", "ip,dso,sym,insn")
    assert [(int(line[0], 16), "guest" in line[1], "guest" in line[2]) for line in found] == [
        (ip, owner == "guest", owner == "guest") for ip, owner in RAN
    ]
    assert [line[3:] for line in found] == [["90"], ["0f", "01", "c2"], ["66", "90"], ["90"]]
    only = lines("instructions", "--function", "guest_text", "--fields", "ip,bits")
    assert [int(line[0], 16) for line in only] == [AT]
    assert lines("instructions", "--function", "guest_text", "--fields", "ip") == [[f"{AT:x}"]]
    # the VM entry leads from one kernel to the other
    (entry, *_) = lines("branches")
    names = [word for word in entry if "text" in word or "kernel" in word]
    assert ["guest" in name for name in names] == [False, True]


def test_machines_sharing_cpu_are_ambiguous() -> None:
    images = Images(kernel=KernelFiles(), guests={number: KernelFiles() for number in (0, 5, 6)})
    assert [images.guest_on_cpu(pids) for pids in ([5, 7, 5], [6], [7], [-1])] == [5, 6, 0, 0]
    assert images.problems == []
    assert images.guest_on_cpu([5, 7, 6]) is None
    (problem,) = images.problems
    assert "5, 6 share a CPU" in problem.message
    assert Images(kernel=KernelFiles()).guest_on_cpu([5]) is None


def test_invalid_guest_options_raise(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(recorded), "--guestmount", str(tmp_path / "none")]) == 2
    assert "--guestmount" in capsys.readouterr().err
    (tmp_path / "modules").write_text("made 12288\n")
    words = ["--kcore", str(tmp_path / "host"), "--guestmodules", str(tmp_path / "modules")]
    assert main(["report", str(recorded), *words]) == 3
    assert "line 1 is not a module with size and address" in "".join(capsys.readouterr())
