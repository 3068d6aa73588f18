"""What `rtit record` says on stderr while it runs and when it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rtit.cli import out
from rtit.cli.outcome import line
from rtit.cli.status import StatusLine

if TYPE_CHECKING:
    from types import TracebackType

    from rtit.capture.backends import Choice
    from rtit.capture.recording import Recording
    from rtit.capture.session import Session

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
        if self._quiet or not self._line.due():
            return
        totals = session.totals
        if self._choice.backend == "perf":
            self._line.show(f"recording: {totals.pt_bytes:,} bytes of perf.data")
            return
        rate = totals.clock / self._line.seconds
        self._line.show(
            f"recording: {totals.clock:,} instructions, {totals.branches:,} branches, "
            f"{totals.pt_bytes:,} bytes of PT, {rate:,.0f} instructions/s"
            f"{_HINTS[self._choice.backend]}"
        )

    def summary(self, recording: Recording) -> None:
        """One line on what was recorded, and every warning."""
        self._line.clear()
        for warning in recording.warnings:
            out.line(f"rtit record: warning: {warning}", to=self._stream)
        if self._quiet:
            return
        if recording.stopped is not None:
            text = f"[ rtit record: stopped {recording.stopped}; the program ran on ]"
            out.line(text, to=self._stream)
        out.line(line(recording, self._choice), to=self._stream)
