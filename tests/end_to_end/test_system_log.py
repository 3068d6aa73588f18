"""The trace of a boot has each interrupt and each write of CR3 of QEMU's log, one by one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from end_to_end.test_system_boot import record_boot
from programs.build import CannotBuildError, compiled
from rtit.trace import Trace
from rtit.trace.events.event_classes import ExecutionModeChange, Interrupt, PagingChange
from support.boot import BUSYBOX, QEMU, find_kernel

KERNEL_START = 1 << 63
INTERRUPT_FLAG = 1 << 9
PAGE_FAULT = 14
UNLOGGED_CR3 = 3
"""CR3 at the start of the trace, and two writes while the kernel has paging turned off."""

INTERRUPT = re.compile(
    r" *\d+: v=(?P<vector>\w+) e=\w+ i=\d cpl=(?P<cpl>\d) IP=\w+:(?P<ip>\w+) pc=\w+ SP=\S+"
    r"(?: CR2=(?P<cr2>\w+))?"
)
CR3_WRITE = re.compile(r"CR3 update: CR3=(\w+)")
FLAGS = re.compile(r"RIP=\w+ RFL=(\w+)")
CONTROL_REGISTERS = re.compile(r"CR0=\w+ CR2=\w+ CR3=(\w+)")


@dataclass
class LoggedInterrupt:
    """An interrupt or exception, with the state of the processor before it."""

    vector: int
    ip: int
    cr2: int | None
    cpl: int
    interrupt_flag: bool = False
    cr3: int = -1


@pytest.mark.slow
def test_trace_has_each_interrupt_and_cr3_write_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = keep_log_of_qemu(tmp_path, monkeypatch)
    boot = record_boot(tmp_path, "-e", "intel_pt/event/")
    logged = list(read_log(copy.read_text()))

    cr3, interrupt_flag = -1, False
    traced: list[LoggedInterrupt | int] = []
    with Trace(boot.data) as trace:
        [stream] = trace.streams
        for event in stream.events():
            if isinstance(event, PagingChange):
                cr3 = event.cr3
                traced.append(cr3)
            elif isinstance(event, ExecutionModeChange):
                interrupt_flag = event.interrupts
            elif isinstance(event, Interrupt):
                vector, ip = event.vector, event.at
                assert vector is not None
                assert ip is not None
                cpl = 0 if ip >= KERNEL_START else 3
                traced.append(LoggedInterrupt(vector, ip, event.cr2, cpl, interrupt_flag, cr3))
    assert sum(isinstance(each, LoggedInterrupt) for each in logged) > 1000
    assert all(isinstance(each, int) for each in traced[:UNLOGGED_CR3])
    assert traced[UNLOGGED_CR3:] == logged


def read_log(text: str) -> Iterator[LoggedInterrupt | int]:
    """Yield interrupts and written values of CR3, from the log of `-d int,mmu`."""
    interrupt: LoggedInterrupt | None = None
    for line in text.splitlines():
        if found := INTERRUPT.match(line):
            vector = int(found["vector"], 16)
            cr2 = int(found["cr2"], 16) if vector == PAGE_FAULT else None
            interrupt = LoggedInterrupt(vector, int(found["ip"], 16), cr2, int(found["cpl"]))
            yield interrupt
        elif found := CR3_WRITE.match(line):
            yield int(found[1], 16)
        elif interrupt is not None and (found := FLAGS.match(line)):
            interrupt.interrupt_flag = bool(int(found[1], 16) & INTERRUPT_FLAG)
        elif interrupt is not None and (found := CONTROL_REGISTERS.match(line)):
            interrupt.cr3 = int(found[1], 16)


def keep_log_of_qemu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let QEMU run with a library that copies its log, and return the path of the copy."""
    find_kernel()
    source = Path(__file__).parents[1] / "support" / "copy_log.c"
    try:
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra"]
        library = compiled("copy_log", [str(source)], language="c", flags=flags)
    except CannotBuildError as error:
        pytest.skip(str(error))
    qemu, copy = folder / "bin" / QEMU, folder / "log"
    qemu.parent.mkdir()
    # The recorder preloads its plugin: a static shell does not load it.
    qemu.write_text(
        f"#!{BUSYBOX} sh\n"
        f'export LD_PRELOAD="$LD_PRELOAD:{library}" LOG_COPY="{copy}"\n'
        f'exec {shutil.which(QEMU)} "$@"\n'
    )
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", str(qemu.parent), prepend=":")
    return copy
