"""An instruction that faults, and those after it in its block, are not in the path.

Single steps give the expected path, and the source of the program gives the number of
executions of each faulting instruction. The plugin's own truth is not used.
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

NO_RUN_AHEAD, ONE_BLOCK, FEW_BLOCKS, UNLIMITED = "0000000", "0000001", "0000007", "1000000"
"""Values of RTIT_QEMU_RUN_AHEAD: blocks that a thread may run ahead."""
NODEFER, RESETHAND, ONSTACK, SIGINFO = 0x40000000, 0x80000000, 0x08000000, 4
MODES = {
    "none": (0, "s", ONE_BLOCK),
    "none, leaps": (0, "l", UNLIMITED),
    "none, mends": (0, "m", NO_RUN_AHEAD),
    "none, mends, threads": (0, "m t", UNLIMITED),
    "resethand": (RESETHAND, "s", FEW_BLOCKS),
    "resethand, leaps, threads": (RESETHAND, "l t", UNLIMITED),
    "nodefer, mends": (NODEFER, "m", FEW_BLOCKS),
    "nodefer and resethand": (NODEFER | RESETHAND, "s", UNLIMITED),
    "siginfo, mends": (SIGINFO, "m", ONE_BLOCK),
    "siginfo and resethand, leaps": (SIGINFO | RESETHAND, "l", UNLIMITED),
    "onstack, leaps": (ONSTACK, "l", FEW_BLOCKS),
    "onstack and siginfo": (ONSTACK | SIGINFO, "s", NO_RUN_AHEAD),
}


def build_program(name: str, *more: str) -> Path:
    flags = [*COMMON, *BARE, f"-I{SOURCES}"]
    header = (SOURCES / "start.h").read_bytes()
    sources = [str(SOURCES / f"{name}.c"), *more]
    try:
        return compiled(name, sources, language="c", flags=flags, depends=[header])
    except CannotBuildError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def faulting_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    code = tmp_path_factory.mktemp("faulting") / "cases.s"
    code.write_text(assembly(cases()))
    return build_program("faulting", str(code))


def record_paths(argv: list[str], backend: str, data: Path) -> list[NDArray[np.uint64]]:
    """Return the path of each thread; initial threads of processes come first."""
    require_backend(backend)
    recording = record_to_end(start_recording(RecordRequest(argv, backend=backend, output=data)))
    assert (recording.exit_code, recording.warnings) == (0, ())
    with Trace(data) as trace:
        streams = sorted(trace.streams, key=lambda stream: stream.tid != stream.pid)
        return [
            np.concatenate([np.asarray(batch.ip) for batch in stream.instructions()])
            for stream in streams
        ]


def count_executions(ips: NDArray[np.uint64]) -> dict[int, int]:
    """Return how often each instruction ran."""
    return dict(zip(*(each.tolist() for each in np.unique(ips, return_counts=True)), strict=True))


def function_addresses(exe: Path, names: list[str]) -> Iterator[int]:
    symbols = FileSymbols(exe)
    for name in names:
        [symbol] = symbols.find_by_name(name)
        yield symbols.address(symbol.offset)


# Without these, `make test` has each flag, each way to go on and each run-ahead.
SLOW_MODES = {"none, leaps", "none, mends", "nodefer and resethand", "siginfo, mends"}


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.slow] * (mode in SLOW_MODES)) for mode in MODES]
)
def test_fault_anywhere_in_a_block_ends_the_path_before_it(
    mode: str, faulting_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, how, ahead = MODES[mode]
    monkeypatch.setenv(RUN_AHEAD, ahead)
    argv = [str(faulting_program), str(flags), *how.split()]
    found, expected = (record_paths(argv, each, tmp_path / each) for each in ("qemu", "ptrace"))
    ran = count_executions(found[0])
    wanted = [case for case in cases() if flags & ONSTACK or not case.needs_stack]
    for case, address in zip(
        wanted, function_addresses(faulting_program, [case.name for case in wanted]), strict=True
    ):
        assert ran.get(address, 0) == case.executed["m" in how], case
    assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("ahead", [NO_RUN_AHEAD, ONE_BLOCK, FEW_BLOCKS, UNLIMITED])
def test_sent_signal_interrupts_no_instruction(
    ahead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal arrives between two blocks, also where the next block is the same one."""
    monkeypatch.setenv(RUN_AHEAD, ahead)
    exe = build_program("sent_in_loops")
    ran = count_executions(np.concatenate(record_paths([str(exe)], "qemu", tmp_path / "data")))
    for kind in ("taken", "jump", "return"):
        rounds, loops = (
            ran[address] for address in function_addresses(exe, [f"round_{kind}", f"loop_{kind}"])
        )
        assert loops == 1000 * rounds
    [handler] = function_addresses(exe, ["on_signal_sent"])
    assert ran[handler] > 20
