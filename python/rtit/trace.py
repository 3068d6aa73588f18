"""What a user opens: a recording, its streams, and what ran."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rtit.errors import PerfDataError
from rtit.image import Images, Mapping, Problem, Symbols
from rtit.packets import BadBytes, Packet, scan
from rtit.perfdata import PerfData, Piece, Queue
from rtit.perfdata import records as perf
from rtit.perfdata.attr import config_value

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rtit import _core

_PROT_EXEC = 4
_MISC_MMAP_DATA = 1 << 13
_ROWS = 1 << 16
_PART = 1 << 20


@dataclass(frozen=True, slots=True)
class Rows:
    """Runs of instructions that followed each other in memory, as columns of one length.

    `start`: IP of the first instruction; `instructions`: how many; `last`: IP of the last; `end`:
    why the run ended (`_core.Flow.ENDS` names it); `time`: TSC estimate at its start, a lower
    bound; `offset`: place in the stream of the packet that ended it.
    """

    start: NDArray[np.uint64]
    instructions: NDArray[np.uint32]
    last: NDArray[np.uint64]
    end: NDArray[np.uint8]
    time: NDArray[np.uint64]
    offset: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Span:
    """What is known of bytes `start`..`end` of a stream: `kind` is exact, resumed or lost; `error`
    says why.
    """

    start: int
    end: int
    kind: str
    error: str

    def __str__(self) -> str:
        text = f"bytes {self.start:#x} to {self.end:#x} {self.kind}"
        return f"{text}: {self.error}" if self.error else text


@dataclass(slots=True)
class Stream:
    """The PT of one logical processor: a thread's (`cpu` -1), or a CPU's. Snapshots of it that
    leave something out between them are several streams: `part` counts them from 1, 0 is all.

    Of a CPU's stream `tid` and `pid` are those of the first thread that was traced there, -1 if
    the file does not say.
    """

    trace: Trace
    cpu: int
    tid: int
    pid: int
    pieces: list[Piece]
    part: int = 0
    _flow: _core.Flow | None = field(default=None, repr=False)

    @property
    def title(self) -> str:
        """How to call it."""
        where = f"cpu {self.cpu}, " if self.cpu >= 0 else ""
        name = self.trace.comms.get(self.tid)
        title = f"{where}thread {self.tid}" + (f" ({name})" if name else "")
        return f"{title}, part {self.part}" if self.part else title

    @property
    def size(self) -> int:
        """Bytes of PT."""
        if self.trace.is_snapshot:
            return len(self.read())
        return sum(piece.size for piece in self.pieces)

    def read(self) -> bytes:
        """All its bytes, without what two pieces both claim: padding, or what snapshots share."""
        return b"".join(self.parts())

    def parts(self) -> Iterator[memoryview]:
        """As `read`, in parts of a megabyte at most, each good until the next is taken."""
        behind = self.trace.data.behind()
        for piece, following in zip_longest(self.pieces, self.pieces[1:]):
            # The later piece is right: perf pads a piece's end without counting the padding.
            own = piece.size
            if following is not None and (
                following.aux_offset > piece.aux_offset or self.trace.is_snapshot
            ):
                own = min(own, max(0, following.aux_offset - piece.aux_offset))
            for start in range(0, own, _PART):
                behind.at(piece.file_offset + start)
                yield piece.data[start : min(start + _PART, own)]

    def packets(self) -> Iterator[Packet | BadBytes]:
        """Its packets, and what lies between."""
        return scan(self.read())

    def flow(self) -> _core.Flow:
        """A decoder at the start of the stream. Raises PerfDataError if nothing describes the
        trace.
        """
        from rtit import _core

        trace = self.trace
        info = trace.data.info
        event = trace.data.intel_pt
        if info is None or event is None:
            raise PerfDataError("no Intel PT event describes the trace", source=trace.path)
        config = event.attr.config
        self._flow = _core.Flow(
            self.parts(),
            trace.images.space(self.tid),
            mtc_freq=self._fits("mtc_period", info.mtc_period(config), 4),
            tsc_ctc=(
                self._fits("tsc_ctc_n", info.tsc_ctc_n, 32),
                self._fits("tsc_ctc_d", info.tsc_ctc_d, 32),
            ),
            max_nonturbo_ratio=self._fits("max_nonturbo_ratio", info.max_nonturbo_ratio, 8),
            start_time=self.pieces[0].reference if self.pieces else 0,
            no_tnt=bool(config_value(config, "notnt")),
            no_retcomp=bool(config_value(config, "noretcomp")),
        )
        return self._flow

    def _fits(self, name: str, value: int, bits: int) -> int:
        if value >> bits:
            message = f"{name} of AUXTRACE_INFO has more than {bits} bits"
            raise PerfDataError(message, source=self.trace.path, value=value)
        return value

    def rows(self) -> Iterator[Rows]:
        """What ran, in chunks; `ledger` and `counts` tell of it once the last chunk was taken."""
        import numpy as np

        flow = self.flow()
        while (columns := flow.next(_ROWS)) is not None:
            yield Rows(
                np.frombuffer(columns["start"], np.uint64),
                np.frombuffer(columns["instructions"], np.uint32),
                np.frombuffer(columns["last"], np.uint64),
                np.frombuffer(columns["end"], np.uint8),
                np.frombuffer(columns["time"], np.uint64),
                np.frombuffer(columns["offset"], np.uint64),
            )

    def runs(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """What ran as columns (start u64, instructions u32, hash u64), as a truth file has it."""
        flow = self.flow()
        while (columns := flow.runs(_ROWS)) is not None:
            yield columns

    def instructions(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """Every instruction: columns of IPs and of times (of the run's start, see `Rows`)."""
        import numpy as np

        ips = np.zeros(0, np.uint64)
        single = self.flow()
        for rows in self.rows():
            times = np.repeat(rows.time, rows.instructions)
            while len(ips) < len(times) and (columns := single.ips(len(times) - len(ips))):
                ips = np.concatenate([ips, np.frombuffer(columns[0], np.uint64)])
            yield ips[: len(times)], times
            ips = ips[len(times) :]

    def ledger(self) -> list[Span]:
        """The account of every byte; decodes the stream if that has not been done."""
        rows = self._decoded().ledger()
        return [
            Span(start, end, trust, text or "")
            for start, end, trust, _class, text, _at, _value in rows
        ]

    def counts(self) -> dict[str, Any]:
        """What `_core.Flow.counts` tells; decodes the stream if that has not been done."""
        return dict(self._decoded().counts())

    def forget(self) -> None:
        """Let go of what decoding has learned; `ledger` and `counts` would decode anew."""
        self._flow = None

    def _decoded(self) -> _core.Flow:
        if self._flow is None:
            self.flow().count()
        assert self._flow is not None
        return self._flow


class Trace:
    """A recording (perf.data), opened for reading. A context manager.

    `symfs` is a folder that holds the recorded files under their recorded paths; `path_map` gives
    single files or folders other places. Raises PerfDataError, UnsupportedError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        symfs: str | os.PathLike[str] | None = None,
        path_map: dict[str, str] | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.data = PerfData(path)
        self._symfs = symfs
        self._path_map = path_map
        self.comms: dict[int, str] = {}
        self._first_on_cpu: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self.data.close()

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

    @cached_property
    def images(self) -> Images:
        """Code bytes of every process over time."""
        images = Images(
            symfs=self._symfs,
            path_map=self._path_map,
            build_ids=self.data.build_ids,
            recorded=Path(self.path).stat().st_mtime,
        )
        for time, record in self._sideband():
            self._apply(images, time, record)
        return images

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
        _ = self.images  # the sideband names threads and processes
        streams = []
        for queue, pieces in self.data.auxtrace_buffers().items():
            parts = connected(pieces) if self.is_snapshot else [pieces]
            for number, part in enumerate(parts, 1):
                stream = self._stream(queue, part)
                stream.part = number if len(parts) > 1 else 0
                streams.append(stream)
        return streams

    def mappings(self) -> dict[int, list[Mapping]]:
        """Executable mappings of every process, over all its life."""
        return {pid: list(self.images.mappings(pid)) for pid in self.images.pids}

    def _stream(self, queue: Queue, pieces: list[Piece]) -> Stream:
        if queue.cpu < 0:
            return Stream(self, -1, queue.tid, self.images.pid(queue.tid), pieces)
        pid, tid = self._first_on_cpu.get(queue.cpu, (-1, -1))
        return Stream(self, queue.cpu, tid, pid, pieces)

    def _sideband(self) -> list[tuple[int, perf.Record]]:
        convert = self.data.time_conversion
        timed = []
        for record in self.data.records():
            when = record.sample_id.time if record.sample_id else None
            ticks = convert.to_tsc(when) if convert is not None and when else 0
            timed.append((ticks, record))
        timed.sort(key=lambda pair: pair[0])
        return timed

    def _apply(self, images: Images, time: int, record: perf.Record) -> None:
        if isinstance(record, perf.Mmap2 | perf.Mmap):
            executable = (
                bool(record.prot & _PROT_EXEC)
                if isinstance(record, perf.Mmap2)
                else not record.misc & _MISC_MMAP_DATA
            )
            images.mmap(
                time,
                record.pid,
                record.tid,
                record.address,
                record.length,
                record.pgoff,
                record.path,
                build_id=record.build_id if isinstance(record, perf.Mmap2) else None,
                executable=executable,
            )
        elif isinstance(record, perf.Comm):
            self.comms[record.tid] = record.comm
            if record.by_exec:
                images.exec(time, record.pid, record.tid)
            else:
                images.thread(record.pid, record.tid)
        elif isinstance(record, perf.Fork):
            images.fork(time, record.pid, record.ppid, record.tid, record.ptid)
            if record.ptid in self.comms:
                self.comms.setdefault(record.tid, self.comms[record.ptid])
        elif isinstance(record, perf.TextPoke):
            owner = record.sample_id
            if owner is not None and owner.pid is not None:
                images.text_poke(time, owner.pid, record.address, record.new)
        elif isinstance(record, perf.ItraceStart):
            images.thread(record.pid, record.tid)
            cpu = record.sample_id.cpu if record.sample_id else None
            if cpu is not None:
                self._first_on_cpu.setdefault(cpu, (record.pid, record.tid))


def connected(pieces: list[Piece]) -> list[list[Piece]]:
    """Snapshots of one buffer in groups between which bytes are missing."""
    groups: list[list[Piece]] = []
    end = 0
    for piece in pieces:
        if not groups or piece.aux_offset > end:
            groups.append([])
            end = 0
        groups[-1].append(piece)
        end = max(end, piece.aux_offset + piece.size)
    return groups
