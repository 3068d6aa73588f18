"""A trace, opened: a recording, or bare PT with its code."""

from __future__ import annotations

import os
from functools import cached_property
from textwrap import shorten
from types import TracebackType
from typing import BinaryIO, Self

from rtit.errors import RtitError
from rtit.image import Images, Mapping, Problem, Symbols
from rtit.perfdata import PerfData, TimeConversion
from rtit.sideband import Ended, Process
from rtit.trace.origin import Origin, Recording
from rtit.trace.settings import Cpu
from rtit.trace.stream import Stream

__all__ = ["Ended", "Process", "Trace"]


class Trace:
    """A recording (perf.data), opened for reading. A context manager. `rtit.decode` gives the same
    of bare PT.

    `path` may also be a file open for reading in binary, or a pipe, whose contents are copied to a
    file without a name first. `symfs` is a folder that holds the recorded files under their
    recorded paths; `path_map` gives single files or folders other places. `cpu` is DisplayFamily,
    DisplayModel and stepping of the processor, instead of what the file says. Raises PerfDataError,
    UnsupportedError; and ClosedError for what is in the file, here and in its streams, once it is
    closed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        symfs: str | os.PathLike[str] | None = None,
        path_map: dict[str, str] | None = None,
        cpu: Cpu | None = None,
    ) -> None:
        self._origin: Origin = Recording(PerfData(path), symfs, path_map, cpu)

    @classmethod
    def of(cls, origin: Origin) -> Self:
        """From where it comes, if that is no recording."""
        trace = cls.__new__(cls)
        trace._origin = origin
        return trace

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._origin.closed:
            return f"<Trace {self.path!r}, closed>"
        try:
            size, count = self._origin.size, self._origin.buffers
            command = " ".join(self.command_line)
        except RtitError as error:
            return f"<Trace {self.path!r}: {error}>"
        what = f": {shorten(command, 60, placeholder=' ...')}" if command else ""
        buffers = f"{count} buffer" + "s" * (count != 1)
        return f"<Trace {self.path!r}{what}; {buffers}, {size:,} bytes of PT>"

    def close(self) -> None:
        """Let go of the file. What was asked for before stays known."""
        self._origin.close()

    @property
    def path(self) -> str:
        """The file, or how bare PT is called."""
        return self._origin.path

    @property
    def data(self) -> PerfData:
        """The file itself. Raises UnsupportedError if it is no perf.data file."""
        return self._origin.data

    @property
    def command_line(self) -> list[str]:
        """The recorder's arguments; empty if they are not known."""
        return self._origin.command_line

    @property
    def facts(self) -> dict[str, str]:
        """What rtit wrote about a recording of its own; empty for others."""
        return self._origin.facts

    @property
    def incomplete(self) -> str | None:
        """Why the file ends early, in one sentence; None if it is whole."""
        return self._origin.incomplete

    @property
    def is_snapshot(self) -> bool:
        """Whether it holds the last packets of each buffer alone, and what was asked for before."""
        return self._origin.is_snapshot

    @property
    def filter(self) -> str | None:
        """The address filter that it was recorded with, as the kernel spells it."""
        return self._origin.filter

    @property
    def clock(self) -> TimeConversion | None:
        """TSC ticks <-> ns of the perf clock; None if that is not known."""
        return self._origin.clock

    @property
    def images(self) -> Images:
        """Code bytes of every process over time."""
        return self._origin.images

    @property
    def comms(self) -> dict[int, str]:
        """The name of every thread that has one, by tid."""
        return self._origin.comms

    @property
    def endings(self) -> list[Ended]:
        """How each process ended, where the file says it: recordings of rtit do."""
        return self._origin.endings

    @property
    def processes(self) -> list[Process]:
        """Who started whom and how each ended; a parent comes before its children."""
        return self._origin.processes

    @cached_property
    def symbols(self) -> Symbols:
        """Names for addresses."""
        return Symbols(self.images)

    @property
    def image_problems(self) -> list[Problem]:
        """Files whose bytes are not known: missing, changed, cut."""
        return self.images.problems

    @cached_property
    def streams(self) -> list[Stream]:
        """The PT streams, in the order of the file; of bare PT there is one."""
        return self._origin.streams()

    def mappings(self) -> dict[int, list[Mapping]]:
        """Executable mappings of every process, over all its life."""
        return {pid: list(self.images.mappings(pid)) for pid in self.images.pids}
