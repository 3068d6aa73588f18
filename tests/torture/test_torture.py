"""Torture programs behave under a recorder as natively, and decode as executed.

These are the quick modes. `python tests/torture/run.py` records all modes and random machine
code, and kills recorders.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from programs.build import CannotBuildError
from rtit.capture.qemu.installation import QemuInstallation
from support.recordings import require_backend
from torture.cases import BETTER_THAN_QEMU, QUICK_MODES, Case, all_cases, random_case, run_program
from torture.recording import is_correct_prefix, record_and_kill, record_and_verify


def case_of_mode(mode: str) -> Case:
    try:
        return next(case for case in all_cases() if case.mode == mode)
    except CannotBuildError as error:
        pytest.skip(str(error))


SLOW_UNDER_PTRACE = {
    *("across_pages", "breakpoints", "daemonised", "exec_among_threads", "family", "file_deleted"),
    *("file_replaced", "group_killed", "nested", "over_all_files", "reused"),
    *("trap_beside_a_timer", "uses_all_numbers", "waits_and_a_blocked_trap"),
    *("waits_and_an_ignored_signal", "waits_and_an_ignored_trap", "waits_that_let_a_trap_in"),
    # Of each kind, other modes remain.
    *("another_root", "another_user", "closes_all", "orphans", "strange_names", "undumpable"),
    *("files_in_turn", "moved", "own_loop", "return_address_in_code", "stack_in_code"),
    *("store_over_a_branch", "values", "call_at_a_page_end", "ends_of_pages", "foreign_program"),
    *("not_executable", "overlaps", "prefixed_branches", "through_gs", "frame_copied"),
    *("frame_into_the_kernel", "jumps_out", "vsyscall", "waits_and_a_signal"),
}
"""Modes that `make test` runs only under QEMU."""
PTRACE_MODES = [
    pytest.param(mode, marks=[pytest.mark.slow] if mode in SLOW_UNDER_PTRACE else [])
    for mode in sorted(QUICK_MODES)
]
QEMU_AND_SLOW_PTRACE = ["qemu", pytest.param("ptrace", marks=pytest.mark.slow)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if shutil.which("sh") is None:
        pytest.skip("no shell")
    return tmp_path


@pytest.mark.parametrize("mode", PTRACE_MODES)
def test_mode_under_ptrace_behaves_as_natively(mode: str, folder: Path) -> None:
    case = case_of_mode(mode)
    found = record_and_verify(case.argv, "ptrace", folder)
    assert found.is_identical, found.verdict
    assert found.behaviour == run_program(case.argv, folder), found.messages


@pytest.mark.parametrize("mode", sorted(QUICK_MODES))
def test_mode_under_qemu_behaves_as_under_plain_qemu(
    mode: str, folder: Path, qemu: QemuInstallation
) -> None:
    case = case_of_mode(mode)
    found = record_and_verify(case.argv, "qemu", folder)
    # If a program is killed before its first system call, the recorder reports an unknown end.
    assert found.is_identical or (mode == "killed_in_exec" and found.has_unknown_execution), (
        found.verdict
    )
    assert found.behaviour == run_program([str(qemu.qemu), *case.argv], folder), found.messages


@pytest.mark.parametrize("mode", sorted(BETTER_THAN_QEMU))
@pytest.mark.parametrize("backend", QEMU_AND_SLOW_PTRACE)
def test_mode_behaves_as_natively_where_plain_qemu_does_not(
    mode: str, backend: str, folder: Path
) -> None:
    require_backend(backend)
    case = case_of_mode(mode)
    found = record_and_verify(case.argv, backend, folder)
    assert found.is_identical, found.verdict
    assert found.behaviour == run_program(case.argv, folder), found.messages


@pytest.mark.parametrize("backend", QEMU_AND_SLOW_PTRACE)
def test_signals_during_exec_are_handled_or_kill(backend: str, folder: Path) -> None:
    """The last instruction of a killed process may be unknown."""
    require_backend(backend)
    case = case_of_mode("real_time_while_in_exec")
    found = record_and_verify(case.argv, backend, folder)
    assert found.is_correct, found.verdict
    assert found.behaviour == run_program(case.argv, folder), found.messages


def test_concurrent_changes_of_signal_actions_keep_their_order(
    folder: Path, qemu: QemuInstallation
) -> None:
    """Two threads change the action of a signal; a signal that is ignored no more must not
    stay ignored over an exec.
    """
    case = case_of_mode("actions_at_once")
    found = record_and_verify(case.argv, "qemu", folder)
    assert found.is_identical, found.verdict
    assert found.behaviour == run_program(case.argv, folder), found.messages


def test_failed_exec_of_foreign_program_keeps_the_process_recorded(
    folder: Path, qemu: QemuInstallation
) -> None:
    """The calling program continues, recorded; when it is killed, its last instructions are
    missing.
    """
    case = Case("over_exec", ("foreign_program", "killed"))
    found = record_and_verify(case.argv, "qemu", folder)
    assert found.behaviour == run_program(case.argv, folder)
    assert found.messages.count("its exec failed, and the process stays recorded") == 2
    assert "a thread was killed: its last instructions are missing" in found.messages
    assert found.is_correct, found.verdict


@pytest.mark.parametrize("mode", ["trap_that_waits_long", "breakpoint_while_ignored"])
def test_traps_after_max_size_behave_as_natively(mode: str, folder: Path) -> None:
    """The program runs on without stops: the kernel must know its blocked and pending
    signals.
    """
    case = case_of_mode(mode)
    options = ("--max-size=16K", "-e", "intel_pt/cyc,noretcomp,mtc_period=0,psb_period=0/u")
    found = record_and_verify(case.argv, "ptrace", folder, *options)
    assert found.is_identical, found.verdict
    assert "more were executed" in found.verdict
    assert found.behaviour == run_program(case.argv, folder), found.messages


def test_branches_with_16_bit_targets_are_recorded(folder: Path) -> None:
    """Some processors keep 16 bits of the target of such a branch."""
    case = case_of_mode("narrow_branches")
    found = record_and_verify(case.argv, "ptrace", folder)
    assert found.is_identical, found.verdict
    assert found.behaviour == run_program(case.argv, folder), found.messages


def test_every_quick_mode_exists() -> None:
    case_of_mode("family")
    assert {case.mode for case in all_cases()} >= QUICK_MODES >= SLOW_UNDER_PTRACE


@pytest.mark.parametrize("backend", ["ptrace", "qemu"])
@pytest.mark.parametrize("mode", ["exec_again", "forks_among_threads"])
def test_killed_recorder_leaves_a_correct_prefix(backend: str, mode: str, folder: Path) -> None:
    """The kill arrives at a random moment."""
    require_backend(backend)
    after = random.uniform(0.3, 1.5)
    code, verdict = record_and_kill(case_of_mode(mode).argv, backend, folder, after)
    assert is_correct_prefix(code, verdict), f"after {after} s: {verdict}"


@pytest.mark.parametrize("seed", [1, 2])
def test_random_machine_code(seed: int, folder: Path) -> None:
    case_of_mode("family")
    found = record_and_verify(random_case(seed, 8).argv, "ptrace", folder)
    assert found.is_identical, found.verdict
    assert found.behaviour.output == b"ran\n"


@pytest.mark.parametrize("seed", [2, 3])
def test_random_machine_code_under_qemu(seed: int, folder: Path, qemu: QemuInstallation) -> None:
    """QEMU also runs instructions that processors refuse; the recorder reports them."""
    case_of_mode("family")
    found = record_and_verify(random_case(seed, 8).argv, "qemu", folder)
    assert found.behaviour.output == b"ran\n"
    assert found.is_correct, found.verdict
    assert "is not known" not in found.messages


@pytest.mark.parametrize("seed", [1, 9])
def test_random_machine_code_that_processors_know_under_qemu(
    seed: int, folder: Path, qemu: QemuInstallation
) -> None:
    case_of_mode("family")
    found = record_and_verify(random_case(seed, known=True).argv, "qemu", folder)
    assert found.behaviour.output == b"ran\n"
    assert found.is_identical, f"{found.messages}{found.verdict}"
