"""Packets of the QEMU plugin decode to what was executed.

The truth comes from a callback at each instruction, which does not depend on blocks.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from programs.build import PROGRAMS
from rtit.capture.qemu.installation import QemuInstallation
from rtit.capture.qemu.start import start_qemu
from rtit.capture.request import RecordRequest
from rtit.capture.session import Recording
from rtit.cli.main import main
from support.both_paths import assert_interpreter_agrees
from support.linting import lint_findings
from support.processes import wait_until
from support.recordings import finish_recording, record_to_end

ProgramBuilder = Callable[[str], Path]

# QEMU itself does not run it: far transfers in user mode.
NOT_RUN_BY_QEMU = {"far", "narrow"}
TERMINATING_PROGRAMS = [
    name for name, program in PROGRAMS.items() if program.ends and name not in NOT_RUN_BY_QEMU
]


class VerifyingRecorder:
    """Records into one folder and verifies the recording."""

    def __init__(
        self, found: QemuInstallation, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.found = found
        self.data = folder / "perf.data"
        self.truth = folder / "truth"
        self.capsys = capsys

    def __call__(
        self, argv: Sequence[object], *, by_instruction: bool = True, event: str = "intel_pt//u"
    ) -> Recording:
        session = start_qemu(
            RecordRequest(
                [str(each) for each in argv], output=self.data, truth=self.truth, event=event
            ),
            truth_by_instruction=by_instruction,
            installation=self.found,
        )
        return record_to_end(session)

    def verified_instructions(self) -> int:
        """Run `rtit verify`, and return the number of instructions that it compared."""
        code = main(["verify", str(self.data), "--truth", str(self.truth)])
        printed = self.capsys.readouterr().out
        assert code == 0, printed
        assert_interpreter_agrees(self.data)
        assert lint_findings(self.data) == []
        return int(printed.splitlines()[-1].split()[1].replace(",", ""))


@pytest.fixture
def record(
    qemu: QemuInstallation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> VerifyingRecorder:
    return VerifyingRecorder(qemu, tmp_path, capsys)


@pytest.mark.parametrize("name", TERMINATING_PROGRAMS)
def test_test_program_decodes_as_executed(
    name: str, program: ProgramBuilder, record: VerifyingRecorder
) -> None:
    wanted = PROGRAMS[name]
    recording = record([program(name), *wanted.arguments])
    if recording.exit_code in wanted.may_exit:
        pytest.skip("this machine cannot show the situation")
    status = wanted.status if wanted.status >= 0 else 128 - wanted.status
    assert (recording.exit_code, recording.warnings) == (status, ())
    assert record.verified_instructions() == recording.instructions > 40


@pytest.mark.parametrize(
    "argv",
    [
        ["/bin/true"],
        ["/bin/ls", "-l", "/"],
        ["/bin/sh", "-c", "echo one two | cat | tr o 0; exit 3"],
    ],
)
@pytest.mark.parametrize("by_instruction", [True, False])
def test_system_program_decodes_as_executed(
    argv: list[str], by_instruction: bool, record: VerifyingRecorder
) -> None:
    recording = record(argv, by_instruction=by_instruction)
    assert recording.exit_code == (3 if "-c" in argv else 0)
    assert record.verified_instructions() == recording.instructions > 50_000


EVENTS = [
    "intel_pt/cyc,cyc_thresh=5/u",
    "intel_pt/tsc=0,mtc=0/u",
    "intel_pt/cyc,mtc_period=0,psb_period=0,noretcomp/u",
]


@pytest.mark.parametrize("event", EVENTS)
def test_packet_settings_decode_as_executed(
    event: str, program: ProgramBuilder, record: VerifyingRecorder
) -> None:
    recording = record([program("signal_nested")], event=event)
    assert record.verified_instructions() == recording.instructions


def test_script_and_its_children_are_recorded(record: VerifyingRecorder, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.write_text("#!/bin/sh\necho inner $1 > result\n")
    outer = tmp_path / "outer"
    outer.write_text(f"#!/bin/sh -e\ncd {tmp_path}\n./inner a &\nwait\nexec ./inner b\n")
    for each in (inner, outer):
        each.chmod(0o755)
    recording = record([outer])
    assert (recording.exit_code, recording.threads) == (0, 2)
    assert (tmp_path / "result").read_text() == "inner b\n"
    assert record.verified_instructions() == recording.instructions


def test_loader_variables_reach_only_the_program(
    record: VerifyingRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second would make the dynamic loader of QEMU fail.
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere,either")
    monkeypatch.setenv("LD_PRELOAD", "/nowhere.so")
    result = tmp_path / "result"
    record(["/bin/sh", "-c", f"/usr/bin/env > {result}"])
    names = dict(line.split("=", 1) for line in result.read_text().splitlines() if "=" in line)
    assert names["LD_LIBRARY_PATH"] == "/nowhere,either"
    assert names["LD_PRELOAD"] == "/nowhere.so"
    assert not [name for name in names if name.startswith(("RTIT_QEMU_F", "RTIT_GUEST"))]


@pytest.mark.slow  # see the mode closes_all in torture/test_torture.py
def test_program_that_closes_every_file_is_recorded(record: VerifyingRecorder) -> None:
    code = "import os; os.closerange(3, 4096); os.execv('/bin/true', ['true'])"
    recording = record([os.path.realpath(sys.executable), "-I", "-S", "-c", code],
                       by_instruction=False)  # fmt: skip
    assert (recording.exit_code, recording.warnings) == (0, ())
    assert record.verified_instructions() == recording.instructions


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_program_is_verified(
    number: signal.Signals,
    qemu: QemuInstallation,
    program: ProgramBuilder,
    record: VerifyingRecorder,
) -> None:
    argv = [str(program("endless"))]
    session = start_qemu(
        RecordRequest(argv, output=record.data, truth=record.truth), installation=qemu
    )
    with session:
        wait_until(lambda: session.step(0.2) and session.totals.pt_bytes > 100_000, "packets")
        session.signal(number)
        recording = finish_recording(session)
    assert recording.exit_code == 128 + number
    # After SIGKILL the end may be missing, which is a warning; otherwise nothing is missing.
    assert bool(recording.warnings) == (number == signal.SIGKILL)
    assert record.verified_instructions() > 100_000


def test_threads_running_at_process_exit_are_verified(
    record: VerifyingRecorder, tmp_path: Path
) -> None:
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")
    source = tmp_path / "busy.c"
    source.write_text(
        "#include <pthread.h>\n#include <unistd.h>\n"
        "static volatile long n[3];\n"
        # The conditional branch lets PT count the iterations.
        "static void *run(void *p) { volatile long *n = p; for (;;) if (++*n % 7 == 0) *n += 2; }\n"
        "int main(int c, char **v) { pthread_t t;\n"
        " for (int i = 0; i < 3; i++) pthread_create(&t, 0, run, (void *)&n[i]);\n"
        " while (!n[0] || !n[1] || !n[2]) usleep(1000);\n"
        " if (c > 1) *(volatile int *)8 = 1;\n (void)v; _exit(7); }\n"
    )
    busy = tmp_path / "busy"
    assert os.spawnl(os.P_WAIT, compiler, "gcc", "-O1", "-pthread", "-o", busy, source) == 0
    for arguments, code in (([], 7), (["crash"], 139)):
        recording = record([busy, *arguments], by_instruction=False)
        assert (recording.exit_code, recording.threads, recording.warnings) == (code, 4, ())
        assert record.verified_instructions() == recording.instructions
