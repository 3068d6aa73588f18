"""What a reading verb could not read: each is told on standard error, and the exit code says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.cli import out
from rtit.views.spool import Spool

if TYPE_CHECKING:
    from rtit.trace import Stream, Trace

EXIT_CODE = 3
UNSURE = "nothing tells whether what ran was before or after a switch of threads"


class Gaps:
    """The gaps of one trace, as `verb` finds them."""

    def __init__(self, verb: str, trace: Trace) -> None:
        self._verb = verb
        self._trace = trace
        self._any = False
        self._has_images = False
        self._seen = Spool()

    def tell(self, text: object) -> None:
        """There is one."""
        self._any = True
        out.complain(self._verb, str(text))

    def noted(self) -> None:
        """There is one, and the output tells of it."""
        self._any = True

    def see(self, stream: Stream) -> None:
        """Have `ledgers` tell what in it could not be decoded, as far as it was decoded last; and
        let go of that: of thousands of streams each would keep an account. A loop that went round
        more often than is known is a gap; that what ran may be another thread's is none, and told
        all the same.
        """
        from rtit.trace.categories import ErrorClass

        unsure, repeats = 0, False
        for span in stream.spans():
            if span.is_gap:
                self._any = True
                self._seen.add(f"{stream.title}: {span}")
            elif span.cause == ErrorClass.TURN_UNKNOWN:
                unsure += 1
            repeats |= span.cause == ErrorClass.REPEATS_UNKNOWN
        if repeats:
            self._any = True
            from rtit.trace.rounds import sentences

            for text in sentences(stream):
                self._seen.add(f"{stream.title}: {text}")
        if unsure:
            self._seen.add(f"{stream.title}: {unsure:,} times {UNSURE}")
        stream.forget()

    def ledgers(self) -> None:
        """Tell what was seen."""
        for line in self._seen.lines():
            out.complain(self._verb, line)

    def images(self) -> None:
        """Tell which code is not known."""
        self._has_images = True
        for problem in self._trace.image_problems:
            self.tell(problem)

    def exit_code(self) -> int:
        """0 if there are none. A file that ends early has one behind its end, told last."""
        if not self._has_images and not self._trace.is_raw and self._trace.data.beyond:
            self.tell(f"{self._trace.data.beyond:,} bytes are of more buffers than are kept")
        if self._trace.incomplete is not None:
            self.tell(f"{self._trace.path} is incomplete: {self._trace.incomplete}")
        return EXIT_CODE if self._any else 0
