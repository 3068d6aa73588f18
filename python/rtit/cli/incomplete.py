"""What a command could not read or decode: reported on standard error, and exit code 3."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rtit.cli import output
from rtit.views.spilled_lines import SpilledLines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rtit.trace import Stream, Trace

EXIT_CODE = 3
AMBIGUOUS = "code near a thread switch may belong to either thread"


class IncompleteReport:
    """The gaps of one trace that `command` finds.

    `print_line` gets each sentence about a gap; by default it is printed as an error.
    """

    def __init__(
        self, command: str, trace: Trace, print_line: Callable[[str], object] | None = None
    ) -> None:
        self._print_line = print_line or partial(output.print_error, command)
        self._trace = trace
        self._has_gaps = False
        self._has_images = False
        self._lines = SpilledLines()

    def print_gap(self, text: object) -> None:
        """Print a gap."""
        self._has_gaps = True
        self._print_line(str(text))

    def note_shown_gap(self) -> None:
        """Note a gap that the command's output shows."""
        self._has_gaps = True

    def collect_undecoded_spans(self, stream: Stream) -> None:
        """Collect the undecoded spans of a decoded stream, for `print_undecoded_spans`.

        The stream's ledger is released. Loops of unknown repetition are gaps; ambiguous thread
        switches are reported, but are no gaps.
        """
        from rtit.trace.tables.batch import ErrorClass

        ambiguous, repeats = 0, False
        for span in stream.spans():
            if span.is_gap:
                self._has_gaps = True
                self._lines.append_line(f"{stream.title}: {span}")
            elif span.cause == ErrorClass.AMBIGUOUS_THREAD:
                ambiguous += 1
            repeats |= span.cause == ErrorClass.UNKNOWN_REPETITIONS
        if repeats:
            self._has_gaps = True
            from rtit.trace.tables.unknown_loops import describe_loops

            for text in describe_loops(stream):
                self._lines.append_line(f"{stream.title}: {text}")
        if ambiguous:
            self._lines.append_line(f"{stream.title}: {ambiguous:,} times {AMBIGUOUS}")
        stream.discard_decoder()

    def print_undecoded_spans(self) -> None:
        """Print the collected spans."""
        for line in self._lines.lines_from_offset():
            self._print_line(line)

    def print_image_problems(self) -> None:
        """Print which code is unknown."""
        self._has_images = True
        for problem in self._trace.image_problems:
            self.print_gap(problem)

    def print_all_gaps(self, streams: Iterable[Stream]) -> int:
        """Print what is missing in the streams, which were decoded, and return the exit code."""
        for stream in streams:
            self.collect_undecoded_spans(stream)
        self.print_undecoded_spans()
        self.print_image_problems()
        return self.exit_code()

    def exit_code(self) -> int:
        """Print what is missing at the end of the recording; return 0 if there are no gaps."""
        if not self._has_images and not self._trace.is_raw and self._trace.data.dropped_bytes:
            self.print_gap(
                f"{self._trace.data.dropped_bytes:,} bytes belong to buffers beyond the limit on "
                "the number of buffers"
            )
        if self._trace.incomplete is not None:
            self.print_gap(f"{self._trace.path} is incomplete: {self._trace.incomplete}")
        return EXIT_CODE if self._has_gaps else 0
