"""Recordings of a host and its virtual machines, merged by `perf inject --guest-data`, with the
true path.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernel import made, recording
from kernel.recording import KERNEL_SIZE, PAGE, _offset
from kernel.writer import KernelWriter
from rtit.emulator_driver import EmulatorDriver
from rtit.perfdata import SwitchRecords, records
from rtit.perfdata.records import RECORD_HEADER
from rtit.processor import Processor
from rtit.registers import CTL, Msr
from rtit.unit.arch_state import ArchState
from rtit.unit.time_model import TimeModel

AT = 0xFFFF_FFFF_8100_0000
HOST = bytes.fromhex("90 0f01c2 90 90 c3")
"""nop; vmlaunch; nop; nop; ret."""
GUEST = bytes.fromhex("6690 0f22d8 6690 480f07")
"""nop; mov cr3, rax; nop; sysretq."""
USER = made.USER_AT
HOST_CR3 = 0x10_0000
IDLE = (0, 0)
_BUFFER, _SIZE = 0x1000_0000, 1 << 16
_STEP = 1000
_OPTIONS = CTL.encode(TraceEn=1, User=1, OS=1, TSCEn=1, BranchEn=1, CYCEn=1)
_FINISHED_INIT = RECORD_HEADER.pack(82, 0, RECORD_HEADER.size)


@dataclass(frozen=True)
class Process:
    """Process `pid` of a guest, with one thread, runs `program`."""

    pid: int
    program: str

    @property
    def cr3(self) -> int:
        return self.pid << 12


@dataclass
class Guest:
    """Virtual machine `pid` of the host; thread `tid` is its only CPU. `switches`: times (TSC) at
    which its processes got that CPU.
    """

    pid: int
    tid: int
    vmcs: int
    processes: list[Process]
    switches: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Host:
    """One CPU, on which `guests` alternate. `ran`: (pid of the machine, pid in the guest or 0 in
    the host, address) of each instruction.
    """

    guests: list[Guest]
    ran: list[tuple[int, int, int]] = field(default_factory=list)
    intervals: list[tuple[int, Guest]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._clock = TimeModel()
        self._cpu = Processor(arch=ArchState(cpl=0, cr3=HOST_CR3), time=self._clock)
        self._cpu.set_msr(Msr.OUTPUT_BASE, _BUFFER)
        self._cpu.set_msr(Msr.OUTPUT_MASK_PTRS, _SIZE - 1)
        self._cpu.vmxon(AT - 0x10, AT - 8)
        ctl = _OPTIONS
        self.options = ctl
        self._driver = EmulatorDriver(self._cpu)
        self._on = False
        self._now: Guest | None = None

    @property
    def time(self) -> int:
        """The TSC."""
        return self._clock.tsc(self._driver.instructions)

    def _wait(self) -> None:
        self._driver.instructions += _STEP
        self._cpu.at(self._driver.instructions)

    def run(self, guest: Guest, first: Process, *more: Process) -> None:
        """Enter a guest, whose process makes a system call; its kernel switches to other processes,
        and the last one leaves the guest.
        """
        cpu, driver = self._cpu, self._driver
        self._wait()
        if self._now is not guest:
            self.intervals.append((self.time, guest))
            self._now = guest
            if self._on:
                driver.advance_to(AT)
                cpu.set_msr(Msr.CTL, 0, ip=AT)
            cpu.vmptrld(AT - 8, AT, guest.vmcs)
            self._wait()
            cpu.set_msr(Msr.CTL, self.options, next_ip=AT)
            self._on = True
        self._execute(guest, 0, AT, HOST, [0, 1])
        self._switch(guest, first)
        cpu.vm_entry(AT + 1, USER, cpl=3, cr3=first.cr3)
        for number, process in enumerate((first, *more)):
            code = made.user(process.program).code[USER]
            last = made.user(process.program).symbols["after_syscall"] - USER - 2
            offsets = {"one": [0, 1, 3, 4], "two": [0, 2, 4, 7, 8]}[process.program]
            self._execute(guest, process.pid, USER, code, offsets)
            cpu.syscall(USER + last, AT)
            if number == len(more):
                break
            after = more[number]
            self._execute(guest, process.pid, AT, GUEST, [0, 2])
            cpu.mov_cr3(AT + 2, AT + 5, after.cr3)
            self._switch(guest, after)
            self._execute(guest, after.pid, AT, GUEST, [5, 7])
            cpu.resume(USER)
        self._execute(guest, process.pid, AT, GUEST, [0])
        driver.advance_to(AT + 2)
        cpu.vm_exit(AT + 2, AT)

    def _switch(self, guest: Guest, process: Process) -> None:
        if not guest.switches or guest.switches[-1][1] != process.pid:
            self._wait()
            guest.switches.append((self.time, process.pid))
            self._wait()

    def _execute(self, guest: Guest, pid: int, start: int, code: bytes, offsets: list[int]) -> None:
        for offset in offsets:
            self._driver.execute(start + offset, code[offset : offset + 15])
            self.ran.append((guest.pid, pid, start + offset))

    @property
    def trace(self) -> bytes:
        """All packets; tracing ends."""
        self._driver.advance_to(AT)
        self._cpu.set_msr(Msr.CTL, 0, ip=AT)
        written = self._cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32
        return self._cpu.unit.output.memory.read(_BUFFER, written)


def write_host(host: Host, path: Path) -> Path:
    """Write the directory of `perf record --kcore -a -e intel_pt/cyc/`."""
    path.mkdir()
    trace = host.trace
    with KernelWriter(
        path / "data",
        config=host.options,
        cpuid="GenuineIntel,6,94,3",
        switches=SwitchRecords.CPU_WIDE,
        kernel=True,
    ) as out:
        out.kernel_map(AT, KERNEL_SIZE, AT, "[kernel.kallsyms]_text")
        for guest in host.guests:
            out.comm(guest.pid, guest.tid, 1, "CPU 0/KVM")
        first = host.intervals[0][1]
        out._file.append(_FINISHED_INIT)
        out.itrace_start(first.pid, first.tid, 2)
        last = IDLE
        for time, guest in host.intervals:
            out.switch(0, time, last, (guest.pid, guest.tid), 1)
            last = guest.pid, guest.tid
        out.auxtrace(-1, -1, trace, None, host.time, cpu=0)
    _copies(path / "kcore_dir", HOST, "host_text")
    return path


def write_guest(guest: Guest, path: Path) -> Path:
    """Write the directory of `perf record --sample-identifier --switch-events --kcore -a -e dummy`
    in the guest, with the host's clock.
    """
    path.mkdir()
    with KernelWriter(
        path / "data",
        config=_OPTIONS,
        cpuid="GenuineIntel,6,94,3",
        switches=SwitchRecords.CPU_WIDE,
        kernel=True,
    ) as out:
        entries = b"".join(
            b"".join(number.to_bytes(8, "little") for number in (each, 0, 0, (1 << 64) - 1))
            for each in (1, 2)
        )
        out._append_record(records.IdIndex, 2, tail=entries)
        out.kernel_map(AT, KERNEL_SIZE, AT, "[kernel.kallsyms]_text")
        for each in guest.processes:
            built = made.user(each.program)
            out.comm(each.pid, each.pid, 1, f"made-{each.program}", by_exec=True)
            size = (len(built.code[USER]) + PAGE - 1) & -PAGE
            offset = (USER, size, _offset(built.path), 5, 2, 0, 0, 0, 0)
            out.mmap2(each.pid, each.pid, 1, *offset, str(built.path))
        last = IDLE
        for time, pid in guest.switches:
            out.switch(0, time, last, (pid, pid))
            last = pid, pid
        out.auxtrace(-1, -1, b"\0" * 8, None, 1, cpu=0)
    _copies(path / "kcore_dir", GUEST, "guest_text")
    return path


def _copies(folder: Path, code: bytes, name: str) -> None:
    class Memory:
        at = {recording.REF: AT}  # noqa: RUF012
        booted = {AT: code}  # noqa: RUF012

    folder.mkdir()
    (folder / "kcore").write_bytes(recording.kcore(Memory()))  # type: ignore[arg-type]
    names = (
        f"{AT:016x} T _text\n{AT:016x} T _stext\n{AT:016x} T {name}\n{AT + PAGE:016x} T _etext\n"
    )
    (folder / "kallsyms").write_text(names)
    (folder / "modules").write_text("")


def merge_recordings(host: Path, guest: Path, pid: int, out: Path) -> Path:
    """Return the recording merged by perf; skip the test if perf has no --guest-data."""
    said = subprocess.run(["perf", "inject", "-h"], capture_output=True, check=False, timeout=60)
    if b"--guest-data" not in said.stdout + said.stderr:
        pytest.skip("this perf has no `perf inject --guest-data`")
    words = ["perf", "inject", "-i", str(host), "-o", str(out), f"--guest-data={guest},{pid}"]
    subprocess.run(words, check=True, timeout=300, capture_output=True)
    return out
