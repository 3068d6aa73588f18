"""A snapshot of a whole system shows what led to its end: a panic, a triple fault, a signal."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rtit.trace import Trace
from rtit.views.verify import ThreadVerdict, verify_threads
from support.boot import APPEND, build_module, find_kernel, write_initrd
from support.recordings import RTIT

MODULE = """
#include <linux/module.h>

noinline int check_made_device(int number);
noinline int probe_made_device(int number);

noinline int check_made_device(int number)
{
	if (number == 3)
		panic("made device %d", number);
	return number;
}

noinline int probe_made_device(int number)
{
	return check_made_device(number) + 1;
}

static int __init start_made_driver(void)
{
	return probe_made_device(1) + probe_made_device(2) + probe_made_device(3);
}

module_init(start_made_driver);
MODULE_LICENSE("GPL");
"""

TRIPLE_FAULT = """
#include <linux/module.h>

static int __init lose_interrupts(void)
{
	struct { u16 limit; u64 base; } __packed no_handlers = {0, 0};

	asm volatile("lidt %0; ud2" : : "m"(no_handlers));
	return 0;
}

module_init(lose_interrupts);
MODULE_LICENSE("GPL");
"""


def snapshot_command(folder: Path, size: str) -> list[str]:
    """Return a command that boots `folder`/initrd with a snapshot."""
    files = ("-o", str(folder / "boot.data"), "--truth", str(folder / "boot.truth"))
    machine = ("--kernel", str(find_kernel()), "--initrd", str(folder / "initrd"))
    return [
        *RTIT, "record", *files, f"--snapshot={size}", "--system", *machine, "--append", APPEND,
    ]  # fmt: skip


def record_snapshot(folder: Path, size: str = "64K") -> str:
    """Record the boot of `folder`/initrd to its end; return the console and messages of rtit."""
    found = subprocess.run(
        snapshot_command(folder, size),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout
    assert "warning" not in found.stdout
    return found.stdout


def verify_snapshot(folder: Path) -> ThreadVerdict:
    """Return the verdict on a recording, which is decoded as executed."""
    with Trace(folder / "boot.data") as trace:
        [verdict] = verify_threads(trace, str(folder / "boot.truth"))
    assert verdict.identical, verdict.reason
    return verdict


def has_snapshot(data: Path) -> bool:
    """Return whether a recording that is being written has packets."""
    with Trace(data) as trace:
        return bool(trace.streams)


def called_functions(folder: Path, *functions: str) -> list[str]:
    """Return the functions that are entered, in order, as far as they are among these."""
    options = [word for name in functions for word in ("--function", name)]
    data = str(folder / "boot.data")
    listed = subprocess.run(
        [*RTIT, "instructions", data, "--fields", "sym", *options],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [line.strip() for line in listed.stdout.splitlines() if "+" not in line]


def callers_of_panic(folder: Path) -> list[str]:
    """Return `panic` and the chain of its callers, from the tree of calls."""
    data = str(folder / "boot.data")
    listed = subprocess.run(
        [*RTIT, "calls", data, "--function", "panic", "--callers"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    _, *rows, _, _ = listed.stdout.splitlines()
    return [row.split()[-1] for row in rows]


@pytest.mark.slow
def test_panic_of_a_module_is_shown_with_its_callers(tmp_path: Path) -> None:
    module = build_module(tmp_path, "made", MODULE)
    write_initrd(tmp_path / "initrd", "busybox insmod /made.ko", {"made.ko": module})
    console = record_snapshot(tmp_path, "256K")
    # The kernel's own call trace.
    trace = console.partition("Call Trace:")[2].partition("</TASK>")[0]
    callers = re.findall(r"\]  (\w+)\+0x", trace)
    expected = ["panic", "check_made_device", "probe_made_device", "start_made_driver"]
    assert callers[callers.index("panic") :][: len(expected)] == expected
    probes = ["probe_made_device", "check_made_device"] * 3
    assert called_functions(tmp_path, *expected) == ["start_made_driver", *probes, "panic"]
    verdict = verify_snapshot(tmp_path)
    assert verdict.part == "end"
    assert callers_of_panic(tmp_path)[: len(expected)] == expected
    with Trace(tmp_path / "boot.data") as recorded:
        [stream] = recorded.streams
        assert stream.size <= 256 << 10


@pytest.mark.slow
def test_triple_fault_is_shown_with_its_function(tmp_path: Path) -> None:
    module = build_module(tmp_path, "made", TRIPLE_FAULT)
    write_initrd(tmp_path / "initrd", "busybox insmod /made.ko", {"made.ko": module})
    record_snapshot(tmp_path)
    assert verify_snapshot(tmp_path).part == "end"
    listed = subprocess.run(
        [*RTIT, "instructions", str(tmp_path / "boot.data"), "--fields", "sym,asm", "--tail", "1"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert re.match(r" *lose_interrupts\+0x[0-9a-f]+ +lidt ", listed.stdout)


@pytest.mark.slow
def test_signals_write_the_end_of_a_machine_that_runs_on(tmp_path: Path) -> None:
    write_initrd(tmp_path / "initrd", "busybox echo ready\nwhile :; do busybox true; done")
    data = tmp_path / "boot.data"
    with subprocess.Popen(
        snapshot_command(tmp_path, "64K"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as recorder:
        assert recorder.stdout is not None
        try:
            while b"ready" not in recorder.stdout.readline():
                assert recorder.poll() is None
            recorder.send_signal(signal.SIGUSR2)
            deadline = time.monotonic() + 60
            while not has_snapshot(data):
                assert time.monotonic() < deadline, "no snapshot is written"
                time.sleep(0.2)
            recorder.send_signal(signal.SIGINT)
            assert recorder.wait(timeout=60) == 0
        finally:
            recorder.kill()
    with Trace(data) as trace:
        assert len(trace.streams) == 2
        verdicts = verify_threads(trace, str(tmp_path / "boot.truth"))
    assert [each.reason for each in verdicts if not each.identical] == []
    assert [each.part for each in verdicts] == ["a part", "end"]
