"""Records a program under a back end, and verifies the recording."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from rtit.cli.main import main
from torture.cases import ProgramBehaviour, run_program

RTIT = [sys.executable, "-m", "rtit"]
SECONDS = 900


@dataclass(frozen=True)
class VerifiedRecording:
    """A recording: `messages` are the recorder's, `verdict` is the output of `rtit verify`."""

    behaviour: ProgramBehaviour
    messages: str
    verify_exit_code: int
    verdict: str

    @property
    def is_identical(self) -> bool:
        return self.verify_exit_code == 0

    @property
    def has_unknown_execution(self) -> bool:
        """Return whether the recorder reported that something ran which it cannot record
        (QEMU).
        """
        signs = ("that processors refuse", "cannot lead", "is not known")
        return any(sign in self.messages for sign in signs)

    @property
    def is_correct(self) -> bool:
        """Return whether the decoded path is the executed one, up to gaps that the recorder
        reported.

        For a program that was killed before anything was written, there may be nothing to
        compare.
        """
        gap = self.has_unknown_execution and "dropped packets (OVF)" in self.verdict
        record_and_kill = "its last instructions are missing" in self.messages
        return (
            self.is_identical or gap or (record_and_kill and "nothing to compare" in self.verdict)
        )


def record_and_verify(
    argv: list[str], backend: str, folder: Path, *options: str
) -> VerifiedRecording:
    """Record `argv` into `folder` and verify the recording."""
    messages = folder / "said"
    seen = run_program(
        ["sh", "-c", 'exec "$@" 2>said', "sh", *record_command(argv, backend, *options)],
        folder,
        SECONDS,
    )
    code, verdict = verify(folder)
    return VerifiedRecording(seen, messages.read_text(errors="replace"), code, verdict)


def record_command(argv: list[str], backend: str, *options: str) -> list[str]:
    """Return the command line that records."""
    files = ["-o", "perf.data", "--truth", "truth"]
    return [*RTIT, "record", "--backend", backend, "-q", *files, *options, "--", *argv]


def verify(folder: Path) -> tuple[int, str]:
    """Return exit code and output of `rtit verify` for the recording in the folder."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        code = main(["verify", str(folder / "perf.data"), "--truth", str(folder / "truth")])
    return code, printed.getvalue()


def record_and_kill(argv: list[str], backend: str, folder: Path, after: float) -> tuple[int, str]:
    """Record, kill the recorder after some seconds, and verify what it has written."""
    with subprocess.Popen(
        record_command(argv, backend),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as recorder:
        time.sleep(after)
        os.kill(recorder.pid, signal.SIGKILL)
    return verify(folder)


def is_correct_prefix(code: int, verdict: str) -> bool:
    """Return whether a killed recorder left nothing, a correct prefix, or a complete
    recording.
    """
    early = (
        *("no recording at", "No such file", "the file is empty", "nothing to compare"),
        "not a truth file: it begins with ''",
    )
    return code in (0, 3) or any(sign in verdict for sign in early)
