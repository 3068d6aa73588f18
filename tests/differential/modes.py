"""A recording of every mode that rtit writes or reads, for stock perf and for rtit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kernel import recording
from kernel.machine import Machine
from kernel.test_paths import run_kernel_code
from rtit.capture.ptrace.session import replay_events
from rtit.capture.request import SizeLimits
from rtit.perfdata import SwitchRecords
from rtit.trace import Trace
from support.recording_variants import write_compressed_recording, write_sampled_recording
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]
REPLAY_OPTIONS: dict[str, dict[str, Any]] = {
    "threads": {},
    "a CPU": {"cpus": 1, "switches": SwitchRecords.THREADS},
    "CPUs, all switches": {"cpus": 2, "switches": SwitchRecords.CPU_WIDE},
    "4 CPUs": {"cpus": 4, "switches": SwitchRecords.THREADS},
    "4 CPUs, all switches": {"cpus": 4, "switches": SwitchRecords.CPU_WIDE},
    "snapshot": {"event": "intel_pt/psb_period=0/u", "size_limits": SizeLimits(snapshot=8192)},
    "up to a size": {
        "event": "intel_pt/psb_period=0/u",
        "size_limits": SizeLimits(max_size=20_000),
    },
    "cycles": {"event": "intel_pt/cyc,mtc_period=0/u"},
    "no RET compression": {"event": "intel_pt/noretcomp/u"},
    "no MTC": {"event": "intel_pt/mtc=0/u"},
    "PTWRITE, power and events": {"event": "intel_pt/ptw,fup_on_ptw,pwr_evt,event/u"},
    "2 CPUs, events": {"event": "intel_pt/event/u", "cpus": 2, "switches": SwitchRecords.CPU_WIDE},
}
"""Options of a replay, by mode."""
COMPRESSED_MODES = {"compressed": "threads", "compressed, 2 CPUs": "CPUs, all switches"}
KERNEL_MODES: dict[str, tuple[dict[str, bool], dict[str, bool]]] = {
    "kernel": ({}, {}),
    "kernel, page tables not isolated": ({"isolated": False}, {}),
    "kernel that is not patched": ({}, {"patches": False}),
}
"""Options of the simulated machine, and of its work, by mode."""
SAMPLED_MODE = "samples with AUX data"
MODES = (*REPLAY_OPTIONS, *COMPRESSED_MODES, *KERNEL_MODES, SAMPLED_MODE)


class ModeRecorder(NamedTuple):
    """Makes a recording of a mode."""

    program: ProgramBuilder
    record: Recorder
    folder: Path

    def __call__(self, mode: str) -> Path:
        """Return a recording of this mode."""
        data = self.folder / "perf.data"
        if mode in REPLAY_OPTIONS:
            log = self.record([self.program("threads")]).log
            replay_events(log, data, **REPLAY_OPTIONS[mode])
        elif mode in COMPRESSED_MODES:
            plain = self.folder / "plain"
            plain.mkdir()
            write_compressed_recording(self._replace(folder=plain)(COMPRESSED_MODES[mode]), data)
        elif mode in KERNEL_MODES:
            machine, does = KERNEL_MODES[mode]
            recording.write(run_kernel_code(Machine(**machine), **does), data)
        else:
            unsampled = self.folder / "whole"
            log = self.record([self.program("exceptions")]).log
            replay_events(log, unsampled, event="intel_pt/psb_period=0/u")
            write_sampled_recording(unsampled, data, sample_ranges(unsampled, 3000, 4096))
        return data


def sample_ranges(data: Path, step: int, size: int) -> list[tuple[int, int]]:
    """Return the last `size` bytes before every `step`; a sample ends at the end of a
    packet.
    """
    with Trace(data) as trace:
        (stream,) = trace.streams
        starts = [int(start) for part in stream.packets() for start in part.offset]
        ends = [starts[bisect_right(starts, at) - 1] for at in range(step, stream.size, step)]
    return [(max(0, end - size), end) for end in ends if end]


@pytest.fixture(scope="session")
def recording_of_mode(
    program: ProgramBuilder, record: Recorder, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Returns a recording of a mode, made once; tests must not change it."""
    made: dict[str, Path] = {}

    def recorded(mode: str) -> Path:
        if mode not in made:
            folder = tmp_path_factory.mktemp("mode")
            made[mode] = ModeRecorder(program, record, folder)(mode)
        return made[mode]

    return recorded
