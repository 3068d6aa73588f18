"""Progress of `rtit record` on standard error, and its summary: one line, or one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from rtit.capture.session import STOPPED_BY_FULL_DISK
from rtit.cli import output
from rtit.cli.progress import StatusLine

if TYPE_CHECKING:
    from types import TracebackType

    from rtit.capture.backends import BackendChoice
    from rtit.capture.session import Recording, RecordingSession

_LARGE = 1 << 30
"""Bytes of PT from which a recording counts as large."""
_HINTS = {
    "ptrace": " (single steps: QEMU, or a static or smaller program, is quicker)",
    "qemu": "",
    "perf": "",
}


class RecordingProgress:
    """A line with the rate while a recording runs, and a summary at its end."""

    def __init__(self, stream: TextIO, choice: BackendChoice, *, quiet: bool = False) -> None:
        self._stream = stream
        self._choice = choice
        self._quiet = quiet
        self._line = StatusLine(stream, also_files=True)
        self._large = _LARGE
        self._warned_of_disk = False

    def __enter__(self) -> RecordingProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._line.clear()

    def update(self, session: RecordingSession) -> None:
        """Show the state of the recording if it is time to."""
        self._warn_of_disk(session.stopped)
        if self._quiet or not self._line.is_due():
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

    def _warn_of_disk(self, stopped: str | None) -> None:
        """Warn once, also with --quiet, that recording has stopped for lack of space."""
        if stopped == STOPPED_BY_FULL_DISK and not self._warned_of_disk:
            self._warned_of_disk = True
            self._line.clear()
            text = "rtit record: warning: the disk is nearly full: recording has stopped"
            output.print_line(text, to=self._stream)

    def _warn_of_size(self, size: int) -> None:
        """Warn on a terminal each time that the size has doubled."""
        while self._large <= size:
            self._large *= 2
        if self._stream.isatty():
            rate = size / self._line.seconds
            self._line.clear()
            output.print_line(
                f"rtit record: warning: {size / 1e9:.1f} GB so far, {rate / 1e6:.1f} MB more each "
                "second; --max-size and --snapshot bound that",
                to=self._stream,
            )

    def summary(self, recording: Recording) -> None:
        """Print every warning, and one line about the recording."""
        self._line.clear()
        self._warn_of_disk(recording.stopped)
        for warning in recording.warnings:
            output.print_line(f"rtit record: warning: {warning}", to=self._stream)
        if self._quiet:
            return
        if recording.stopped is not None:
            text = f"[ rtit record: stopped {recording.stopped}; the program ran on ]"
            output.print_line(text, to=self._stream)
        output.print_line(summary_line(recording, self._choice), to=self._stream)


def summary_line(recording: Recording, choice: BackendChoice) -> str:
    """Return the summary; it says how the program ended unless its exit code is 0."""
    threads = f"{recording.threads} thread{'s' if recording.threads != 1 else ''}"
    counts = f"{recording.instructions:,} instructions, {recording.branches:,} branches"
    parts = [
        _traced(recording)
        if not recording.counted
        else f"{counts} of {threads} executed, {_traced(recording)}"
        if recording.partial
        else f"{counts} of {threads} as {_traced(recording)}"
    ]
    if recording.ending is not None and recording.ending.status:
        parts.append(f"ended by {recording.ending}" if recording.ending.signal
                     else f"ended with {recording.ending}")  # fmt: skip
    parts.append(f"{choice.backend}: {choice.reason}")
    return f"[ rtit record: {'; '.join(parts)} ]"


def _traced(recording: Recording) -> str:
    size = f"{recording.pt_bytes:,} bytes of PT"
    if not (recording.counted and recording.partial):
        return f"{size} in {recording.path}"
    instructions, branches = recording.traced_instructions, recording.traced_branches
    if instructions is None:
        return f"of which {size} are in {recording.path}"
    traced = f"of them {instructions:,} instructions, {branches:,} branches traced"
    return f"{traced} as {size} in {recording.path}"


def summary_json(recording: Recording, choice: BackendChoice, command: list[str]) -> dict[str, Any]:
    """Return the object of --json, which `rtit help json` describes."""
    ending = recording.ending
    fault = ending.fault if ending is not None else None
    return {
        "file": str(recording.path),
        "command": command,
        "backend": choice.backend,
        "why": choice.reason,
        "exit_code": recording.exit_code,
        "ended": None if ending is None else str(ending),
        "signal": None if ending is None else ending.signal,
        "fault": None
        if fault is None
        else {"ip": fault.ip, "address": fault.address, "si_code": fault.code},
        "executed_instructions": recording.instructions if recording.counted else None,
        "executed_branches": recording.branches if recording.counted else None,
        "traced_instructions": recording.traced_instructions,
        "traced_branches": recording.traced_branches,
        "partial": recording.partial,
        "threads": recording.threads if recording.counted else None,
        "pt_bytes": recording.pt_bytes,
        "stopped": recording.stopped,
        "warnings": list(recording.warnings),
    }
