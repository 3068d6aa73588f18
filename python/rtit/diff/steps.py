"""Instructions around a place, as people read them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rtit.diff.compare import Parting
    from rtit.diff.path import Run
    from rtit.trace import Stream, Trace

_LONGEST = 15


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that ran: where, `function+0x12`, `file.c:12` or "", and in Intel's syntax."""

    ip: int
    symbol: str
    source: str
    assembly: str


class Side:
    """One of the two recordings, at places where they part."""

    def __init__(self, trace: Trace, stream: Stream) -> None:
        self._trace = trace
        self._stream = stream

    def around(
        self, parting: Parting, side: int, steps: int
    ) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """The last instructions that are equal, and the first that are not."""
        before = [place for run in parting.before[side][-steps:] for place in self._places(run)]
        after = [place for run in parting.after[side] for place in self._places(run)]
        before.extend(after[: parting.shared])
        after = after[parting.shared :]
        return (
            tuple(self.step(*place) for place in before[-steps:]),
            tuple(self.step(*place) for place in after[:steps]),
        )

    def _places(self, run: Run) -> Iterator[tuple[int, int]]:
        """The IP of each instruction of a run, with the time."""
        from rtit._core import decode_instruction

        ip = run.start
        for _ in range(run.instructions):
            yield ip, run.time
            if ip == run.last:
                return
            try:
                length, *_ = decode_instruction(self._code(ip, run.time), ip)
            except ValueError:
                return
            ip += length

    def behind(self, ip: int, time: int) -> int:
        """The IP of the next instruction in memory; the same if its bytes are not known."""
        from rtit._core import decode_instruction

        try:
            length, *_ = decode_instruction(self._code(ip, time), ip)
        except ValueError:
            return ip
        return ip + length

    def step(self, ip: int, time: int) -> Step:
        """The instruction at an IP, as of a time (TSC)."""
        from rtit._core import disassemble

        tid, symbols = self._stream.tid, self._trace.symbols
        place = symbols.source_line(tid, time, ip)
        return Step(
            ip,
            str(symbols.lookup(tid, time, ip)),
            f"{PurePath(place[0]).name}:{place[1]}" if place is not None else "",
            disassemble(self._code(ip, time), ip),
        )

    def _code(self, ip: int, time: int) -> bytes:
        return self._stream.image.native.read(time, ip, _LONGEST)


def assembly_of(steps: Sequence[Step]) -> list[str]:
    """A line each."""
    return [f"{each.symbol:32} {each.assembly:40} {each.source}".rstrip() for each in steps]
