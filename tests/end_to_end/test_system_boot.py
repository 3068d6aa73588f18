"""A Linux kernel boots under the recorder; its decoded path is the executed one.

A recording of a boot takes 3 seconds of CPU time.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from rtit.trace import Trace
from rtit.views.verify import verify_threads
from support.boot import APPEND, QEMU, find_kernel, write_initrd
from support.recordings import RTIT

LOAD_ADDRESS = 0x100_0000

SCRIPT = """
busybox mount -t proc proc /proc
busybox echo of 1 | busybox sed s/of/line/
busybox head -n 1000 /proc/kallsyms
"""


@dataclass(frozen=True)
class Boot:
    """A recorded boot; `output` has the console and the messages of rtit."""

    data: Path
    truth: Path
    output: str

    def verified_instructions(self) -> int:
        """Return the number of instructions, all of which are decoded as executed."""
        with Trace(self.data) as trace:
            [verdict] = verify_threads(trace, str(self.truth))
        assert verdict.identical, verdict.reason
        return verdict.instructions


def record_boot(folder: Path, *options: str, append: str = APPEND) -> Boot:
    """Record a boot to power off."""
    kernel, initrd = find_kernel(), folder / "initrd"
    write_initrd(initrd, SCRIPT)
    boot = Boot(folder / "boot.data", folder / "boot.truth", "")
    files = ("-o", str(boot.data), "--truth", str(boot.truth))
    machine = ("--kernel", str(kernel), "--initrd", str(initrd), "--append", append)
    found = subprocess.run(
        [*RTIT, "record", *files, *options, "--system", *machine],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout
    assert "line 1\n" in found.stdout
    assert "warning" not in found.stdout
    return Boot(boot.data, boot.truth, found.stdout.replace("\r", ""))


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """A boot with the default event."""
    return record_boot(tmp_path_factory.mktemp("boot"))


def test_boot_is_decoded_as_executed(boot: Boot) -> None:
    assert boot.verified_instructions() > 100_000_000


def test_symbols_are_those_of_the_running_kernel(boot: Boot) -> None:
    # The kernel has moved itself to a random address.
    printed = re.findall(r"^[0-9a-f]{16} [a-zA-Z] \S+$", boot.output, re.MULTILINE)
    symbols = Path(f"{boot.data}.kallsyms").read_text().splitlines()
    assert len(printed) == 1000
    assert any(line.split()[1] in "tT" for line in printed)
    assert set(printed) <= set(symbols)


def test_threads_of_a_boot_have_names(boot: Boot) -> None:
    with Trace(boot.data) as trace:
        names = {process.pid: process.name for process in trace.processes}
        assert names[0] == "swapper/0"
        assert {"kthreadd", "busybox"} <= set(names.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "event", ["intel_pt/cyc,mtc_period=0/", "intel_pt//k", "intel_pt//u", "intel_pt/event/"]
)
def test_boot_with_another_event_is_decoded_as_executed(event: str, tmp_path: Path) -> None:
    assert record_boot(tmp_path, "-e", event).verified_instructions() > 1_000_000


@pytest.mark.slow
def test_cr3_filter_selects_one_page_table(boot: Boot, tmp_path: Path) -> None:
    lines = Path(f"{boot.data}.kallsyms").read_text().splitlines()
    symbols = {name: int(address, 16) for address, _, name in map(str.split, lines)}
    # The first page table of the kernel; without KASLR, the kernel is at a fixed address.
    cr3 = LOAD_ADDRESS + symbols["init_top_pgt"] - symbols["_text"]
    part = record_boot(tmp_path, "--cr3", hex(cr3), append=f"{APPEND} nokaslr")
    assert 1_000_000 < part.verified_instructions() < boot.verified_instructions()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--system", "--", "true"], f"--system needs the command of {QEMU}"),
        (["--system", "--", QEMU, "-d", "int"], "-d cannot be used with --system"),
        (["--kernel", "bzImage"], "--kernel needs --system"),
        (["--initrd", "initrd", "true"], "--initrd and --append need --kernel"),
        (["--cr3", "0x1000", "true"], "--cr3 needs --system"),
        (["--system", "--", QEMU, "-S"], "-S cannot be used with --system"),
        (["--system", "--", QEMU, "-enable-kvm", "-S"], "-enable-kvm cannot be used with --system"),
        (["--system", "--", QEMU, "--d", "int"], "--d cannot be used with --system"),
        (["--system", "--", QEMU, "-M", "pc,accel=kvm"], "accel=kvm cannot be used with --system"),
    ],
)
def test_impossible_options_of_systems_are_refused(arguments: list[str], message: str) -> None:
    found = subprocess.run(
        [*RTIT, "record", *arguments], capture_output=True, text=True, check=False
    )
    assert found.returncode != 0
    assert message in found.stderr
    assert len(found.stderr.splitlines()) <= 2


def test_missing_emulator_is_named_with_its_package(tmp_path: Path) -> None:
    found = subprocess.run(
        [*RTIT, "record", "--system", "--", QEMU],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 127
    assert "is not installed (Debian and Ubuntu: qemu-system-x86)" in found.stderr


def test_missing_kernel_is_named_with_its_package(tmp_path: Path) -> None:
    found = subprocess.run(
        [*RTIT, "record", "--system", "--kernel", "bzImage"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 125
    assert found.stderr.startswith("rtit record: -kernel bzImage: no such file (unpack a kernel")
    assert found.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_machine_without_kernel_is_reported(tmp_path: Path) -> None:
    find_kernel()
    words = ["-display", "none", "-nodefaults", "-monitor", "stdio"]
    found = subprocess.run(
        [*RTIT, "record", "--system", "--", QEMU, *words],
        cwd=tmp_path,
        input="quit\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "nothing was recorded: the machine did not reach the 32-bit entry" in found.stderr
