"""Where an instruction fails, what ran is told exactly: it did not, and nothing behind it did.

The expected path is that of single steps, and the number of times that an instruction runs which
fails is what the program's code says. The plugin's own truth does not count here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from programs.build import BARE, COMMON, SOURCES, CannotBuildError, compiled
from programs.faulting import assembly, cases
from rtit.capture.backends import start_recording
from rtit.capture.qemu.plugin_protocol import RUN_AHEAD
from rtit.capture.request import RecordRequest
from rtit.image.file_symbols import FileSymbols
from rtit.trace import Trace
from support.recordings import record_to_end, require_backend

AT_ONCE, ONE_BLOCK, FEW_BLOCKS, AS_EVER = "0000000", "0000001", "0000007", "1000000"
"""Blocks that a thread may run ahead."""
NODEFER, RESETHAND, ONSTACK, SIGINFO = 0x40000000, 0x80000000, 0x08000000, 4
MODES = {
    "none": (0, "s", ONE_BLOCK),
    "none, leaps": (0, "l", AS_EVER),
    "none, mends": (0, "m", AT_ONCE),
    "none, mends, threads": (0, "m t", AS_EVER),
    "resethand": (RESETHAND, "s", FEW_BLOCKS),
    "resethand, leaps, threads": (RESETHAND, "l t", AS_EVER),
    "nodefer, mends": (NODEFER, "m", FEW_BLOCKS),
    "nodefer and resethand": (NODEFER | RESETHAND, "s", AS_EVER),
    "siginfo, mends": (SIGINFO, "m", ONE_BLOCK),
    "siginfo and resethand, leaps": (SIGINFO | RESETHAND, "l", AS_EVER),
    "onstack, leaps": (ONSTACK, "l", FEW_BLOCKS),
    "onstack and siginfo": (ONSTACK | SIGINFO, "s", AT_ONCE),
}


def built(name: str, *more: str) -> Path:
    flags = [*COMMON, *BARE, f"-I{SOURCES}"]
    header = (SOURCES / "start.h").read_bytes()
    sources = [str(SOURCES / f"{name}.c"), *more]
    try:
        return compiled(name, sources, language="c", flags=flags, depends=[header])
    except CannotBuildError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def faulting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    code = tmp_path_factory.mktemp("faulting") / "cases.s"
    code.write_text(assembly(cases()))
    return built("faulting", str(code))


def paths(argv: list[str], backend: str, data: Path) -> list[NDArray[np.uint64]]:
    """What each thread executed, those that processes begin with first."""
    require_backend(backend)
    recording = record_to_end(start_recording(RecordRequest(argv, backend=backend, output=data)))
    assert (recording.exit_code, recording.warnings) == (0, ())
    with Trace(data) as trace:
        streams = sorted(trace.streams, key=lambda stream: stream.tid != stream.pid)
        return [
            np.concatenate([np.asarray(batch.ip) for batch in stream.instructions()])
            for stream in streams
        ]


def times(ips: NDArray[np.uint64]) -> dict[int, int]:
    """How often each instruction ran."""
    return dict(zip(*(each.tolist() for each in np.unique(ips, return_counts=True)), strict=True))


def places(exe: Path, names: list[str]) -> Iterator[int]:
    symbols = FileSymbols(exe)
    for name in names:
        [symbol] = symbols.find_by_name(name)
        yield symbols.address(symbol.offset)


@pytest.mark.parametrize("mode", MODES)
def test_everywhere_in_blocks(
    mode: str, faulting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, how, ahead = MODES[mode]
    monkeypatch.setenv(RUN_AHEAD, ahead)
    argv = [str(faulting), str(flags), *how.split()]
    found, expected = (paths(argv, each, tmp_path / each) for each in ("qemu", "ptrace"))
    ran = times(found[0])
    wanted = [case for case in cases() if flags & ONSTACK or not case.needs_stack]
    for case, place in zip(wanted, places(faulting, [case.name for case in wanted]), strict=True):
        assert ran.get(place, 0) == case.executed["m" in how], case
    assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("ahead", [AT_ONCE, ONE_BLOCK, FEW_BLOCKS, AS_EVER])
def test_what_is_sent_stops_no_instruction(
    ahead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes between two blocks, also where the next one is the same again."""
    monkeypatch.setenv(RUN_AHEAD, ahead)
    exe = built("sent_in_loops")
    ran = times(np.concatenate(paths([str(exe)], "qemu", tmp_path / "data")))
    for kind in ("taken", "jump", "return"):
        rounds, loops = (ran[place] for place in places(exe, [f"round_{kind}", f"loop_{kind}"]))
        assert loops == 1000 * rounds
    [handler] = places(exe, ["on_signal_sent"])
    assert ran[handler] > 20
