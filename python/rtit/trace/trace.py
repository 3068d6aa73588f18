"""A recording, opened."""

from __future__ import annotations

import os
from functools import cached_property
from textwrap import shorten
from types import TracebackType
from typing import BinaryIO, Self

from rtit.errors import PerfDataError, RtitError
from rtit.image import Images, Mapping, Problem, Symbols
from rtit.perfdata import PerfData, Piece, Queue, TimeConversion
from rtit.sideband import Ended, Process, Threads, follow
from rtit.trace.settings import Settings, of_perf
from rtit.trace.snapshots import connected
from rtit.trace.source import AuxBytes, open_data
from rtit.trace.stream import Stream

__all__ = ["Ended", "Process", "Trace"]


class Trace:
    """A recording (perf.data), opened for reading. A context manager.

    `path` may also be a file open for reading in binary, or a pipe, whose contents are copied to a
    file without a name first. `symfs` is a folder that holds the recorded files under their
    recorded paths; `path_map` gives single files or folders other places. Raises PerfDataError,
    UnsupportedError; and ClosedError for what is in the file, here and in its streams, once it is
    closed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        symfs: str | os.PathLike[str] | None = None,
        path_map: dict[str, str] | None = None,
    ) -> None:
        self._data = PerfData(path)
        self.path = self._data.path
        self._symfs = symfs
        self._path_map = path_map

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
        if self._data.closed:
            return f"<Trace {self.path!r}, closed>"
        try:
            buffers = self._data.auxtrace_buffers()
            command = " ".join(self._data.command_line)
        except RtitError as error:
            return f"<Trace {self.path!r}: {error}>"
        size = sum(piece.size for pieces in buffers.values() for piece in pieces)
        what = f": {shorten(command, 60, placeholder=' ...')}" if command else ""
        count = f"{len(buffers)} buffer" + "s" * (len(buffers) != 1)
        return f"<Trace {self.path!r}{what}; {count}, {size:,} bytes of PT>"

    def close(self) -> None:
        """Let go of the file. What was asked for before stays known."""
        self._data.close()

    @property
    def data(self) -> PerfData:
        """The file itself."""
        return open_data(self._data)

    @property
    def incomplete(self) -> str | None:
        """Why the file ends early, in one sentence; None if it is whole."""
        return self.data.incomplete

    @property
    def is_snapshot(self) -> bool:
        """Whether it holds the last packets of each buffer alone, and what was asked for before."""
        return self.data.info is not None and bool(self.data.info.snapshot_mode)

    @property
    def filter(self) -> str | None:
        """The address filter that it was recorded with, as the kernel spells it."""
        return self.data.info.filter if self.data.info else None

    @property
    def clock(self) -> TimeConversion | None:
        """TSC ticks <-> ns of the perf clock; None if the file does not say."""
        return self.data.time_conversion

    @property
    def images(self) -> Images:
        """Code bytes of every process over time."""
        return self._sideband[0]

    @property
    def comms(self) -> dict[int, str]:
        """The name of every thread that has one, by tid."""
        return self._sideband[1].names

    @property
    def endings(self) -> list[Ended]:
        """How each process ended, where the file says it: recordings of rtit do."""
        return self._sideband[1].endings.processes

    @cached_property
    def processes(self) -> list[Process]:
        """Who started whom and how each ended; a parent comes before its children."""
        threads = self._sideband[1]
        return threads.processes.all(threads.endings.processes)

    @cached_property
    def _sideband(self) -> tuple[Images, Threads]:
        images = Images(
            symfs=self._symfs,
            path_map=self._path_map,
            build_ids=self.data.build_ids,
            recorded=self.data.modified,
        )
        return images, follow(self.data, images)

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
        """The PT streams, in the order of the file."""
        streams = []
        for queue, pieces in self.data.auxtrace_buffers().items():
            parts = connected(pieces) if self.is_snapshot else [pieces]
            for number, part in enumerate(parts, 1):
                streams.append(self._stream(queue, part, number if len(parts) > 1 else 0))
        return streams

    def mappings(self) -> dict[int, list[Mapping]]:
        """Executable mappings of every process, over all its life."""
        return {pid: list(self.images.mappings(pid)) for pid in self.images.pids}

    def _stream(self, queue: Queue, pieces: list[Piece], part: int) -> Stream:
        images, threads = self._sideband
        if queue.cpu < 0:
            pid, tid = images.pid(queue.tid), queue.tid
        else:
            pid, tid = threads.first_on(queue.cpu)
        settings: Settings | PerfDataError
        try:
            settings = of_perf(self.data, pieces[0].reference)
        except PerfDataError as error:
            settings = error
        return Stream(
            AuxBytes(self.data, pieces, snapshot=self.is_snapshot),
            images.space(tid),
            settings,
            cpu=queue.cpu,
            tid=tid,
            pid=pid,
            name=threads.names.get(tid),
            part=part,
        )
