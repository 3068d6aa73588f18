"""The trace of a boot has each interrupt and each write of CR3 of QEMU's log, one by one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from end_to_end.test_system_boot import Boot, record_boot, record_boot_of_two_processors
from programs.build import CannotBuildError, compiled
from rtit.perfdata.log_comparisons import FACT, parse_comparisons
from rtit.trace import Stream, Trace
from rtit.trace.events.event_classes import ExecutionModeChange, Interrupt, PagingChange
from support.boot import BUSYBOX, QEMU, find_kernel

KERNEL_START = 1 << 63
INTERRUPT_FLAG = 1 << 9
PAGE_FAULT = 14
UNLOGGED_CR3 = (3, 2)
"""Values at each start of the first processor, and of another one: CR3 at the start of the trace,
which is 0, and writes while the kernel has paging turned off."""

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
    assert_trace_has_events_of_log(record_boot(tmp_path, "-e", "intel_pt/event/"), copy, [1])


@pytest.mark.slow
@pytest.mark.parametrize("thread", ["multi", "single"])
def test_trace_of_each_of_two_processors_has_the_events_of_its_log(
    thread: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = keep_log_of_qemu(tmp_path, monkeypatch)
    boot = record_boot_of_two_processors(tmp_path, thread, "intel_pt/event/")
    assert min(boot.verified_instructions_by_processor()) > 10_000_000
    assert_trace_has_events_of_log(boot, copy, [1, 2])


def assert_trace_has_events_of_log(boot: Boot, copy: Path, starts: list[int]) -> None:
    """Check each interrupt and each value of CR3; processor `number` starts `starts[number]` times.

    The recorder itself has also compared them with the state of the processors.
    """
    interrupts = 0
    with Trace(boot.data) as trace:
        assert len(trace.streams) == len(starts)
        for stream in trace.streams:
            logged = list(read_log(Path(f"{copy}.{stream.cpu}").read_text()))
            traced = list(read_trace(stream))
            first = [index for index, each in enumerate(traced) if each == 0]
            assert len(first) == starts[stream.cpu]
            for index in reversed(first):
                del traced[index : index + UNLOGGED_CR3[stream.cpu > 0]]
            assert traced == logged
            interrupts += sum(isinstance(each, LoggedInterrupt) for each in logged)
        comparisons = parse_comparisons(trace.facts[FACT])
    assert interrupts > 1000
    counts = {each.name: each.comparisons for each in comparisons}
    assert 1000 < counts["CPL"] <= interrupts
    assert 1000 < counts["RFLAGS.IF"] <= interrupts
    assert counts["CR3"] > interrupts
    assert not any(each.differences for each in comparisons)


def read_trace(stream: Stream) -> Iterator[LoggedInterrupt | int]:
    """Yield interrupts and values of CR3, from a trace with event trace."""
    cr3, interrupt_flag = -1, False
    for event in stream.events():
        if isinstance(event, PagingChange):
            cr3 = event.cr3
            yield cr3
        elif isinstance(event, ExecutionModeChange):
            interrupt_flag = event.interrupts
        elif isinstance(event, Interrupt):
            vector, ip = event.vector, event.at
            assert vector is not None
            assert ip is not None
            cpl = 0 if ip >= KERNEL_START else 3
            yield LoggedInterrupt(vector, ip, event.cr2, cpl, interrupt_flag, cr3)


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
    """Let QEMU run with a library that copies its log, and return the path of the copies.

    The number of the processor is appended to the path.
    """
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
