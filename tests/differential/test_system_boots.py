"""libipt and stock perf decode the boot of a Linux kernel as executed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from differential.oracles import libipt, perf
from differential.oracles.raw import CodeChange, auxtrace, code_changes
from end_to_end.test_system_boot import SCRIPT, record_boot
from kernel.recording import PAGE, core_file
from rtit.trace import Trace
from support.recordings import RTIT, thread_ends

KERNEL_START = 1 << 63
PERIOD = 10_007
STRETCH = 50_000
"""Nanoseconds before and after a change of code, as seen in every detail."""


@pytest.mark.slow
@pytest.mark.parametrize("event", ["intel_pt/noretcomp/", "intel_pt/noretcomp,pwr_evt/"])
def test_libipt_decodes_a_whole_boot_as_executed(event: str, tmp_path: Path) -> None:
    """libipt follows the kernel while it patches itself, and all programs by their CR3.

    Without return compression: the retpolines of the kernel change the return address of a call,
    which libipt's return stack does not allow for.
    """
    try:
        libipt.compiled_with_libipt("ipt_system")
    except libipt.LibiptMissingError as error:
        pytest.skip(str(error))
    script = f"{SCRIPT}\nbusybox sleep 0.2"
    boot = record_boot(tmp_path, "-e", event, script=script)
    [(_, instructions, chain)] = thread_ends(boot.truth).values()
    [stream] = auxtrace(boot.data)
    changes = code_changes(boot.data)
    assert sum(change.time > 0 for change in changes) > 100
    assert instructions > 100_000_000
    found = libipt.system_path(stream.data, changes)
    assert found == (instructions, chain, 0, "")


@pytest.mark.slow
def test_perf_decodes_the_kernel_of_a_boot_as_rtit(tmp_path: Path) -> None:
    """perf lists the same instructions and functions once the kernel runs at its own addresses.

    Before, the kernel decompresses itself in low memory, of which perf has no code. From there on
    the test compares every 10007th instruction, and a stretch with a change of code completely.
    """
    boot = record_boot(tmp_path, "-e", "intel_pt//k")
    changes = [change for change in code_changes(boot.data) if change.pid is None]
    kallsyms = Path(f"{boot.data}.kallsyms").read_text()
    copies = tmp_path / "copies"
    write_kernel_copies(copies, kallsyms, changes)
    options = ["--kallsyms", str(copies / "kallsyms"), "--ns"]
    try:
        lines = perf.script(boot.data, [*options, f"--itrace=i{PERIOD}ie", "-F", "ip"]).splitlines()
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    errors = [index for index, line in enumerate(lines) if "error" in line]
    assert all(" ip 0xffffffff" not in lines[index] for index in errors)
    samples = np.array([int(line, 16) for line in lines[errors[-1] + 1 :]], np.uint64)
    assert len(samples) > 10_000
    assert_samples_lie_on_path(samples, boot.data)

    later = sorted(change.time for change in changes if change.time)
    middle = later[len(later) // 2]
    first, last = middle - STRETCH, middle + STRETCH
    times = [f"{time // 10**9}.{time % 10**9:09}" for time in (first, last)]
    fields = ["--itrace=i0nse", "--time", ",".join(times), "-F", "ip,sym,symoff"]
    theirs = [line.split() for line in perf.script(boot.data, [*options, *fields]).splitlines()]
    ours = rows_of_stretch(boot.data, first, last)
    # perf extrapolates the time between two packets.
    start = [row[0] for row in theirs].index(ours[0][0])
    common = min(len(theirs) - start, len(ours))
    assert common > STRETCH
    assert_rows_agree(theirs[start:][:common], ours[:common], kallsyms)


def write_kernel_copies(folder: Path, kallsyms: str, changes: list[CodeChange]) -> None:
    """Write the kernel at its first address of execution, as `perf record --kcore` copies it."""
    addresses = {
        name: int(address, 16) for address, _, name in map(str.split, kallsyms.splitlines())
    }
    start, end = addresses["_text"], addresses["_end"] + PAGE - 1 & -PAGE
    memory = bytearray(end - start)
    for change in changes:
        at = change.address - start
        if not change.time and 0 <= at <= len(memory) - len(change.code):
            memory[at : at + len(change.code)] = change.code
    folder.mkdir()
    (folder / "kcore").write_bytes(core_file([(start, bytes(memory))]))
    # At __switch_to, perf waits for a record of the switch. After code that is not traced, it is
    # out of step until the kernel calls __perf_event_task_sched_out, which it does only under perf.
    (folder / "kallsyms").write_text(kallsyms.replace(" __switch_to\n", " switch_to\n"))
    (folder / "modules").write_text("")


def assert_samples_lie_on_path(samples: np.ndarray, data: Path) -> None:
    """The kernel's path has the samples at a distance of PERIOD, from the first to the last."""
    parts = kernel_path(data)
    path = np.concatenate([next(parts), next(parts)])
    at = next(
        int(place)
        for place in np.flatnonzero(path == samples[0])
        if np.array_equal(path[place::PERIOD][:50], samples[:50])
    )
    compared = 0
    while len(path):
        found = path[at::PERIOD]
        assert np.array_equal(found, samples[compared : compared + len(found)])
        compared += len(found)
        at = (at - len(path)) % PERIOD
        path = next(parts, path[:0])
    assert compared == len(samples)


def kernel_path(data: Path) -> Iterator[np.ndarray]:
    """Yield all addresses from the first on after which no low address follows."""
    with Trace(data) as trace:
        [stream] = trace.streams
        flow = stream.native_decoder()
        has_begun = False
        while (columns := flow.instructions(1 << 20)) is not None:
            ips = np.array(columns["ip"])
            low = np.flatnonzero(ips < KERNEL_START)
            assert not (has_begun and len(low)), "low addresses after the kernel's"
            if len(low) < len(ips) and (not len(low) or low[-1] < len(ips) - 1):
                has_begun = True
                yield ips[low[-1] + 1 :] if len(low) else ips


def rows_of_stretch(data: Path, first: int, last: int) -> list[list[str]]:
    """Return address and symbol, such as `schedule+0x1f`, of the instructions of this time."""
    command = [*RTIT, "instructions", "-i", str(data), "--fields", "ip,sym"]
    listed = subprocess.run(
        [*command, "--time", f"{first},{last}"], capture_output=True, text=True, check=True
    )
    return [line.split() for line in listed.stdout.splitlines()]


def assert_rows_agree(theirs: list[list[str]], ours: list[list[str]], kallsyms: str) -> None:
    """The addresses are equal, and both symbols are names of the same place in the kernel."""
    addresses: dict[str, set[int]] = {"switch_to": set()}
    for address, _, name in map(str.split, kallsyms.splitlines()):
        addresses.setdefault(name, set()).add(int(address, 16))
    addresses["switch_to"] |= addresses["__switch_to"]
    assert [ip for ip, _ in theirs] == [ip for ip, _ in ours]
    for row in {tuple(row) for row in (*theirs, *ours)}:
        name, _, offset = row[1].partition("+")
        assert int(row[0], 16) - int(offset or "0", 16) in addresses[name], row
