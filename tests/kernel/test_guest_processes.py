"""Code of guest processes that the user names by CR3."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from kernel import made
from kernel.recording import PAGE, _offset
from kernel.test_guests import AT, GUEST, HOST, core, write
from rtit.cli.main import main
from rtit.emulator_driver import EmulatorDriver
from rtit.image.guest_processes import GuestProcess
from rtit.processor import Processor
from rtit.registers import CTL, Msr
from rtit.trace import Trace
from rtit.trace.recording import packs
from rtit.unit.arch_state import ArchState
from rtit.unit.time_model import TimeModel

_BUFFER, _SIZE = 0x1000_0000, 1 << 16
HOST_CR3, CR3 = 0x10_0000, {"one": 0x20_0000, "two": 0x30_0000}
VMCS = 0x7000
USER = made.USER_AT
Ran = list[tuple[str, int]]


def trace_guest_programs(programs: list[str]) -> tuple[bytes, Ran]:
    """Run each program in a guest; return packets and path.

    The host enters the guest, its process makes a system call, and its kernel leaves the guest. The
    programs are at the same addresses.
    """
    cpu = Processor(arch=ArchState(cpl=0, cr3=HOST_CR3), time=TimeModel())
    cpu.set_msr(Msr.OUTPUT_BASE, _BUFFER)
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, _SIZE - 1)
    cpu.vmxon(AT - 0x10, AT - 8)
    cpu.vmptrld(AT - 8, AT, VMCS)
    cpu.set_msr(Msr.CTL, CTL.encode(TraceEn=1, User=1, OS=1, TSCEn=1, BranchEn=1), next_ip=AT)
    driver, ran = EmulatorDriver(cpu), []

    def run(owner: str, start: int, code: bytes, offsets: list[int]) -> None:
        for offset in offsets:
            driver.execute(start + offset, code[offset : offset + 15])
            ran.append((owner, start + offset))

    for program in programs:
        code = made.user(program).code[USER]
        last = made.user(program).symbols["after_syscall"] - USER - 2
        offsets = {"one": [0, 1, 3, 4], "two": [0, 2, 4, 7, 8]}[program]
        assert offsets[-1] == last
        run("host", AT, HOST, [0, 1])
        cpu.vm_entry(AT + 1, USER, cpl=3, cr3=CR3[program])
        run(program, USER, code, offsets)
        cpu.syscall(USER + last, AT)
        run("guest", AT, GUEST, [0, 2])
        driver.advance_to(AT + 3)
        cpu.vm_exit(AT + 3, AT)
    driver.advance_to(AT)
    cpu.set_msr(Msr.CTL, 0, ip=AT)
    size = cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32
    return cpu.unit.output.memory.read(_BUFFER, size), ran


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the host's kernel, and the root file system of virtual machine 500."""
    (tmp_path / "host").write_bytes(core(HOST))
    root = tmp_path / "mount" / "500"
    (root / "proc").mkdir(parents=True)
    (root / "proc" / "kcore").write_bytes(core(GUEST))
    for pid, name in enumerate(("one", "two"), 7):
        built = made.user(name).path
        shutil.copy(built, root / name)
        (root / "proc" / str(pid)).mkdir()
        at, size = _offset(built), PAGE
        (root / "proc" / str(pid) / "maps").write_text(
            f"{USER:08x}-{USER + size:08x} r-xp {at:08x} fe:01 1234                 /{name}\n"
            "7ffd0000-7ffd2000 r-xp 00000000 00:00 0                          [vdso]\n"
            "7ffe0000-7ffe2000 rw-p 00000000 fe:01 1234                       /data\n"
        )
    return tmp_path


def options(folder: Path, *more: str) -> list[str]:
    words = ["--kcore", str(folder / "host"), "--guestmount", str(folder / "mount")]
    return [*words, *(f"--guest-process={each}" for each in more)]


ONE, TWO = f"{CR3['one']:#x}=500/7", f"{CR3['two']:#x},{VMCS:#x}=500/8"


def instructions(
    data: Path, words: list[str], capsys: pytest.CaptureFixture[str], code: int = 0
) -> list[int]:
    capsys.readouterr()
    assert main(["instructions", str(data), *words, "--fields", "ip"]) == code
    return [int(line, 16) for line in capsys.readouterr().out.split()]


@pytest.mark.parametrize("programs", [["one"], ["one", "two", "two", "one"]])
def test_each_guest_process_has_its_code(
    programs: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packets, ran = trace_guest_programs(programs)
    data = write(folder / "perf.data", packets)
    words = options(folder, ONE, TWO)
    assert instructions(data, words, capsys) == [ip for _, ip in ran]
    # without: user code of the guest is missing, and no other code replaces it
    found = instructions(data, options(folder), capsys, 3)
    assert [ip for ip in found if ip < 1 << 63] == []


def test_pack_has_guest_processes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packets, ran = trace_guest_programs(["two", "one"])
    data, pack = write(folder / "perf.data", packets), folder / "pack"
    assert main(["pack", str(data), *options(folder, ONE, TWO), "-o", str(pack)]) == 0
    shutil.rmtree(folder / "mount")
    assert instructions(pack, [], capsys) == [ip for _, ip in ran]
    with zipfile.ZipFile(pack) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    said = json.loads(content[packs.MANIFEST])
    wrong: list[object] = [[1], [[1, 2]], [[-1, None, 5, []]], [[1, None, 5, [[5, 4, 0, "x"]]]]]
    for bad in wrong:
        content[packs.MANIFEST] = json.dumps({**said, "guest_processes": bad}).encode()
        with zipfile.ZipFile(pack, "w") as archive:
            for name, data_of in content.items():
                archive.writestr(name, data_of)
        assert main(["report", str(pack)]) == 1
        assert "not a readable pack" in capsys.readouterr().err


def test_link_out_of_guest_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The owner of the guest controls the file system."""
    packets, _ = trace_guest_programs(["one"])
    data = write(folder / "perf.data", packets)
    (folder / "mount" / "500" / "one").unlink()
    (folder / "mount" / "500" / "one").symlink_to(made.user("one").path)
    found = instructions(data, options(folder, ONE), capsys, 3)
    assert [ip for ip in found if ip < 1 << 63] == []
    with Trace(data, guest_mount=folder / "mount", guest_processes=[ONE]) as trace:
        assert any("lead out of the guest" in str(each) for each in trace.image_problems)


@pytest.mark.parametrize(
    "text", ["", "1", "x=5/7", "1=5", "1,y=5/7", "1=500/9", "1=../7", "1=500/../7"]
)
def test_invalid_guest_process_option_raises(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(folder / "perf.data", trace_guest_programs(["one"])[0])
    assert main(["report", str(data), *options(folder, text)]) == 2
    assert "--guest-process" in capsys.readouterr().err


def test_guest_processes_with_same_cr3_raise(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(folder / "perf.data", trace_guest_programs(["one"])[0])
    again = f"{CR3['one']}=500/8"
    assert main(["report", str(data), *options(folder, ONE, again)]) == 2
    assert "another one has this CR3" in capsys.readouterr().err


def test_info_reports_missing_guest_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(folder / "perf.data", trace_guest_programs(["one"])[0])
    (folder / "mount" / "500" / "one").unlink()
    assert main(["info", str(data), *options(folder, ONE)]) == 3
    path = folder / "mount" / "500" / "one"
    printed = capsys.readouterr().out
    assert re.search(rf"{path}[^:]*: the file does not exist", printed)


def test_guest_process_needs_mount(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "perf.data", f"--guest-process={ONE}"]) == 2
    assert "needs --guestmount" in capsys.readouterr().err
    found = GuestProcess.parse(TWO, folder / "mount")
    assert (found.key, found.machine) == ((CR3["two"], 1, VMCS), 500)
    assert [path for *_, path in found.rows] == [str(folder / "mount" / "500" / "two")]
