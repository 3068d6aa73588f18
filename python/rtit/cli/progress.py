"""What `rtit record` says on stderr while it runs and when it is done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from rtit.cli.outcome import line

if TYPE_CHECKING:
    from types import TracebackType

    from rtit.capture.backends import Choice
    from rtit.capture.recording import Recording
    from rtit.capture.session import Session

_HINTS = {
    "ptrace": " (single steps: QEMU, or a static or smaller program, is quicker)",
    "qemu": "",
}
_QUIET_SECONDS = 2.0
_EVERY_TERMINAL = 0.5
_EVERY_FILE = 10.0


class Progress:
    """A line with the rate, for recordings that take long; a summary at the end."""

    def __init__(self, stream: TextIO, choice: Choice, *, quiet: bool = False) -> None:
        self._stream = stream
        self._choice = choice
        self._quiet = quiet
        self._terminal = stream.isatty()
        self._begin = time.monotonic()
        self._next = self._begin + (_QUIET_SECONDS if self._terminal else _EVERY_FILE)
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clear()

    def update(self, session: Session) -> None:
        """Show where the recording stands, when it is time to."""
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + (_EVERY_TERMINAL if self._terminal else _EVERY_FILE)
        totals = session.totals
        rate = totals.clock / (now - self._begin)
        text = (
            f"recording: {totals.clock:,} instructions, {totals.branches:,} branches, "
            f"{totals.pt_bytes:,} bytes of PT, {rate:,.0f} instructions/s"
            f"{_HINTS[self._choice.backend]}"
        )
        if self._terminal:
            self._stream.write(f"\r\x1b[K{text}")
            self._shown = True
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def summary(self, recording: Recording) -> None:
        """One line on what was recorded, and every warning."""
        self._clear()
        for warning in recording.warnings:
            print(f"rtit record: warning: {warning}", file=self._stream)
        if self._quiet:
            return
        if recording.stopped is not None:
            print(
                f"[ rtit record: stopped {recording.stopped}; the program ran on ]",
                file=self._stream,
            )
        print(line(recording, self._choice), file=self._stream)

    def _clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
