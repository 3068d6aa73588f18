"""A program recorded by a back end, and whether what was decoded is what ran."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from torture.cases import Behaviour, behaviour

RTIT = [sys.executable, "-m", "rtit"]
SECONDS = 900


@dataclass(frozen=True)
class Recorded:
    """`said` is what the recorder wrote beside the program's output, `verdict` what `rtit verify`
    printed and `verified` its exit code.
    """

    behaviour: Behaviour
    said: str
    verified: int
    verdict: str

    @property
    def identical(self) -> bool:
        return self.verified == 0

    @property
    def alarmed(self) -> bool:
        """Under QEMU: whether it was said that something ran which cannot be told."""
        signs = ("that processors refuse", "cannot lead", "is not known")
        return any(sign in self.said for sign in signs)

    @property
    def right(self) -> bool:
        """What was decoded is what ran, or parts from it at a gap that the recorder told of. Of who
        was killed before anything was written nothing was compared.
        """
        gap = self.alarmed and "dropped packets (OVF)" in self.verdict
        killed = "its last instructions are missing" in self.said
        return self.identical or gap or (killed and "nothing to compare" in self.verdict)


def record(argv: list[str], backend: str, folder: Path, *options: str) -> Recorded:
    """Record `argv` into `folder` and verify it."""
    said = folder / "said"
    seen = behaviour(
        ["sh", "-c", 'exec "$@" 2>said', "sh", *command(argv, backend, *options)], folder, SECONDS
    )
    code, verdict = verify(folder)
    return Recorded(seen, said.read_text(errors="replace"), code, verdict)


def command(argv: list[str], backend: str, *options: str) -> list[str]:
    """The command line that does it."""
    files = ["-o", "perf.data", "--truth", "truth"]
    return [*RTIT, "record", "--backend", backend, "-q", *files, *options, "--", *argv]


def verify(folder: Path) -> tuple[int, str]:
    """Exit code and output of `rtit verify` of what is in the folder."""
    words = [*RTIT, "verify", "perf.data", "--truth", "truth"]
    ended = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    return ended.returncode, ended.stdout + ended.stderr


def killed(argv: list[str], backend: str, folder: Path, after: float) -> tuple[int, str]:
    """Record, kill the recorder after so many seconds, and verify what there is."""
    with subprocess.Popen(
        command(argv, backend),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as recorder:
        time.sleep(after)
        os.kill(recorder.pid, signal.SIGKILL)
    return verify(folder)


def right_as_far_as_it_goes(code: int, verdict: str) -> bool:
    """Of a killed recorder: it had written nothing yet, or a prefix, or it had ended."""
    early = (
        *("No such file", "the file is empty", "not a truth file: it begins with ''"),
        "nothing to compare",
    )
    return code in (0, 3) or any(sign in verdict for sign in early)
