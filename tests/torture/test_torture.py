"""Nasty programs behave under a recorder as they do without, and what is decoded is what ran.

The quick ones; `python tests/torture/run.py` records all, random machine code, and kills recorders.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from programs.build import CannotBuildError
from rtit.capture.qemu.installation import QemuInstallation
from support.recordings import require_backend
from torture.cases import BETTER_THAN_QEMU, QUICK, Case, behaviour, cases, random_case
from torture.recorded import killed, record, right_as_far_as_it_goes


def named(mode: str) -> Case:
    try:
        return next(case for case in cases() if case.mode == mode)
    except CannotBuildError as error:
        pytest.skip(str(error))


SLOW_BY_SINGLE_STEPS = {
    "across_pages",
    "exec_among_threads",
    "file_replaced",
    "reused",
    "trap_beside_a_timer",
    "uses_all_numbers",
    "waits_and_a_blocked_trap",
    "waits_and_an_ignored_signal",
    "waits_and_an_ignored_trap",
    "waits_that_let_a_trap_in",
}
"""Modes of 3 to 15 seconds; `make test` runs them under QEMU."""
BY_SINGLE_STEPS = [
    pytest.param(mode, marks=[pytest.mark.slow] if mode in SLOW_BY_SINGLE_STEPS else [])
    for mode in sorted(QUICK)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if shutil.which("sh") is None:
        pytest.skip("no shell")
    return tmp_path


@pytest.mark.parametrize("mode", BY_SINGLE_STEPS)
def test_by_single_steps(mode: str, folder: Path) -> None:
    case = named(mode)
    found = record(case.argv, "ptrace", folder)
    assert found.identical, found.verdict
    assert found.behaviour == behaviour(case.argv, folder), found.said


@pytest.mark.parametrize("mode", sorted(QUICK))
def test_under_qemu(mode: str, folder: Path, qemu: QemuInstallation) -> None:
    case = named(mode)
    found = record(case.argv, "qemu", folder)
    # Of who is killed before a first system call the last instruction is not known, which is said.
    assert found.identical or (mode == "killed_in_exec" and found.alarmed), found.verdict
    assert found.behaviour == behaviour([str(qemu.qemu), *case.argv], folder), found.said


@pytest.mark.parametrize("mode", sorted(BETTER_THAN_QEMU))
@pytest.mark.parametrize("backend", ["ptrace", "qemu"])
def test_as_without_qemu(mode: str, backend: str, folder: Path) -> None:
    require_backend(backend)
    case = named(mode)
    found = record(case.argv, backend, folder)
    assert found.identical, found.verdict
    assert found.behaviour == behaviour(case.argv, folder), found.said


@pytest.mark.parametrize("backend", ["ptrace", "qemu"])
def test_signals_that_come_while_a_program_is_replaced(backend: str, folder: Path) -> None:
    """Each is handled or kills. Of who is killed the last instruction may not be known."""
    require_backend(backend)
    case = named("real_time_while_in_exec")
    found = record(case.argv, backend, folder)
    assert found.right, found.verdict
    assert found.behaviour == behaviour(case.argv, folder), found.said


def test_actions_at_once(folder: Path, qemu: QemuInstallation) -> None:
    """Of two threads that change what is done with a signal each what QEMU did is looked at in that
    order: none is kept ignored over an exec that is ignored no more.
    """
    case = named("actions_at_once")
    found = record(case.argv, "qemu", folder)
    assert found.identical, found.verdict
    assert found.behaviour == behaviour(case.argv, folder), found.said


def test_a_foreign_program_that_is_not_run(folder: Path, qemu: QemuInstallation) -> None:
    """What called for it goes on, recorded, and is missed when it is killed."""
    case = Case("over_exec", ("foreign_program", "killed"))
    found = record(case.argv, "qemu", folder)
    assert found.behaviour == behaviour(case.argv, folder)
    assert found.said.count("its exec failed, and the process stays recorded") == 2
    assert "a thread was killed: its last instructions are missing" in found.said
    assert found.right, found.verdict


@pytest.mark.parametrize("mode", ["trap_that_waits_long", "breakpoint_while_ignored"])
def test_a_trap_when_the_file_is_full(mode: str, folder: Path) -> None:
    """The program runs on without stops: the kernel has to know what it blocks, and what waits."""
    case = named(mode)
    options = ("--max-size=16K", "-e", "intel_pt/cyc,noretcomp,mtc_period=0,psb_period=0/u")
    found = record(case.argv, "ptrace", folder, *options)
    assert found.identical, found.verdict
    assert "more were executed" in found.verdict
    assert found.behaviour == behaviour(case.argv, folder), found.said


def test_branches_that_go_where_they_do_not_lead(folder: Path) -> None:
    """Some processors leave 16 bits of the target: the branch is told, and the rest as it was."""
    case = named("narrow_branches")
    found = record(case.argv, "ptrace", folder)
    assert found.identical, found.verdict
    assert found.behaviour == behaviour(case.argv, folder), found.said


def test_every_quick_mode_exists() -> None:
    named("family")
    assert {case.mode for case in cases()} >= QUICK >= SLOW_BY_SINGLE_STEPS


@pytest.mark.parametrize("backend", ["ptrace", "qemu"])
@pytest.mark.parametrize("mode", ["exec_again", "forks_among_threads"])
def test_a_recorder_that_is_killed(backend: str, mode: str, folder: Path) -> None:
    """At some moment: the test does not ask for the same one each time."""
    require_backend(backend)
    after = random.uniform(0.3, 1.5)
    code, verdict = killed(named(mode).argv, backend, folder, after)
    assert right_as_far_as_it_goes(code, verdict), f"after {after} s: {verdict}"


@pytest.mark.parametrize("seed", [1, 2])
def test_random_machine_code(seed: int, folder: Path) -> None:
    named("family")
    found = record(random_case(seed, 8).argv, "ptrace", folder)
    assert found.identical, found.verdict
    assert found.behaviour.output == b"ran\n"


@pytest.mark.parametrize("seed", [2, 3])
def test_random_machine_code_under_qemu(seed: int, folder: Path, qemu: QemuInstallation) -> None:
    """QEMU also runs what processors refuse: then the recorder says so."""
    named("family")
    found = record(random_case(seed, 8).argv, "qemu", folder)
    assert found.behaviour.output == b"ran\n"
    assert found.right, found.verdict
    assert "is not known" not in found.said


@pytest.mark.parametrize("seed", [1, 9])
def test_random_machine_code_that_processors_know_under_qemu(
    seed: int, folder: Path, qemu: QemuInstallation
) -> None:
    named("family")
    found = record(random_case(seed, known=True).argv, "qemu", folder)
    assert found.behaviour.output == b"ran\n"
    assert found.identical, f"{found.said}{found.verdict}"
