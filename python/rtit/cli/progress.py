"""What `rtit record` says on stderr while it runs and when it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rtit.capture.recording import NO_SPACE
from rtit.cli import out
from rtit.cli.outcome import line
from rtit.cli.status import StatusLine

if TYPE_CHECKING:
    from types import TracebackType

    from rtit.capture.backends import Choice
    from rtit.capture.recording import Recording
    from rtit.capture.session import Session

_LARGE = 1 << 30
"""Bytes of PT from which on a recording is called large."""
_HINTS = {
    "ptrace": " (single steps: QEMU, or a static or smaller program, is quicker)",
    "qemu": "",
    "perf": "",
}


class Progress:
    """A line with the rate, for recordings that take long; a summary at the end."""

    def __init__(self, stream: TextIO, choice: Choice, *, quiet: bool = False) -> None:
        self._stream = stream
        self._choice = choice
        self._quiet = quiet
        self._line = StatusLine(stream, also_files=True)
        self._large = _LARGE
        self._told_of_disk = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._line.clear()

    def update(self, session: Session) -> None:
        """Show where the recording stands, when it is time to."""
        self._tell_of_disk(session.stopped)
        if self._quiet or not self._line.due():
            return
        totals = session.totals
        if totals.pt_bytes >= self._large and session.stopped is None:
            self._warn_of_size(totals.pt_bytes)
        if self._choice.backend == "perf":
            self._line.show(f"recording: {totals.pt_bytes:,} bytes of perf.data")
            return
        rate = totals.clock / self._line.seconds
        self._line.show(
            f"recording: {totals.clock:,} instructions, {totals.branches:,} branches, "
            f"{totals.pt_bytes:,} bytes of PT, {rate:,.0f} instructions/s"
            f"{_HINTS[self._choice.backend]}"
        )

    def _tell_of_disk(self, stopped: str | None) -> None:
        """Once, also if nothing else is shown: more of the program is not recorded."""
        if stopped == NO_SPACE and not self._told_of_disk:
            self._told_of_disk = True
            self._line.clear()
            text = "rtit record: warning: the disk is nearly full: recording has stopped"
            out.line(text, to=self._stream)

    def _warn_of_size(self, size: int) -> None:
        """On a terminal, each time that the recording has twice the size."""
        while self._large <= size:
            self._large *= 2
        if self._stream.isatty():
            rate = size / self._line.seconds
            self._line.clear()
            out.line(
                f"rtit record: warning: {size / 1e9:.1f} GB so far, {rate / 1e6:.1f} MB more each "
                "second; --max-size and --snapshot bound that",
                to=self._stream,
            )

    def summary(self, recording: Recording) -> None:
        """One line on what was recorded, and every warning."""
        self._line.clear()
        self._tell_of_disk(recording.stopped)
        for warning in recording.warnings:
            out.line(f"rtit record: warning: {warning}", to=self._stream)
        if self._quiet:
            return
        if recording.stopped is not None:
            text = f"[ rtit record: stopped {recording.stopped}; the program ran on ]"
            out.line(text, to=self._stream)
        out.line(line(recording, self._choice), to=self._stream)
