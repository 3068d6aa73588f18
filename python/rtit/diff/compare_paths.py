"""Compares the execution paths of two threads: where they diverge, and where they reconverge.

A path is a sequence of *steps*. A step is a run of instructions: its file, its position in the
file, and its length, so the load address does not matter. If the two recordings ran different
builds of a file, all that stays in one function of it (or in the dynamic loader) is one step.

`compare_paths` decodes both paths in chunks, so memory is bounded. At the first differing step the
paths diverge. They reconverge at the nearest pair of steps from which `min_match` steps are equal.
The search looks at 64 steps of each path, then at more, up to 131,072.

Comparing decoded rows is faster than making and comparing steps. Equal rows are therefore passed
over before the first divergence, if equal rows are equal steps (`has_same_positions`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit.diff.difference import ListedInstruction
from rtit.diff.matched_builds import BY_FILE, BY_FUNCTION, EXACT
from rtit.image import MappingLookup
from rtit.trace import End

if TYPE_CHECKING:
    from rtit.diff.matched_builds import BuildMatching
    from rtit.trace import Rows, Stream, Trace

_MAX_INSTRUCTION_BYTES = 15
"""Bytes of an instruction."""
MAX_KEPT_RUNS = 64
"""Equal runs that are kept before a divergence."""
_LEAVING_ENDS = (End.CALL, End.INDIRECT_CALL, End.RETURN, End.SYSCALL)
"""A run with such an end leaves its function."""


class InstructionRun(NamedTuple):
    """Instructions that are contiguous in memory and ran in order."""

    start: int
    last: int
    """IP of the last instruction."""
    instructions: int
    time: int
    """In TSC ticks."""
    end: End


class ExecutionPath:
    """The path of a stream, read in chunks of steps. Chunk borders do not change the steps.

    `indexes`: only the runs from this instruction of the stream up to that one.
    """

    def __init__(
        self,
        trace: Trace,
        stream: Stream,
        builds: BuildMatching,
        side: int,
        indexes: tuple[int, int] | None = None,
    ) -> None:
        self.trace = trace
        self.stream = stream
        self._regions = MappingLookup(trace.images.mappings(stream.tid))
        self._file_keys, self._builds = builds.mapping_keys(side, self._regions.mappings)
        self._batches = self.stream.rows()
        if indexes is not None:
            self._batches = _rows_within(self._batches, *indexes)
        self._put_back: deque[Rows] = deque()
        self._chunks = self._decode_steps()
        self._chunk = _StepColumns.empty_columns()
        self._at = 0

    def has_same_positions(self, other: ExecutionPath) -> bool:
        """Return whether equal rows of both paths are equal steps: the same files are at the same
        addresses, at all times, and no file is another build.
        """
        return (
            not self._builds
            and not other._builds
            and self._regions.has_same_offsets(other._regions)
            and bool(np.array_equal(self._file_keys, other._file_keys))
        )

    def next_batch(self) -> Rows | None:
        """Return the next rows, before any steps are requested; None at the end of the path."""
        return self._put_back.popleft() if self._put_back else next(self._batches, None)

    def put_back(self, batches: Sequence[Rows]) -> None:
        """Let these rows follow next; empty batches are dropped."""
        self._put_back.extendleft(each for each in reversed(batches) if len(each))

    def count_loaded_steps(self) -> int:
        """Return the number of steps before the next chunk; 0 at the end of the path."""
        while self._at == len(self._chunk.file):
            following = next(self._chunks, None)
            if following is None:
                return 0
            self._chunk, self._at = following, 0
        return len(self._chunk.file) - self._at

    def next_keys(self, count: int) -> tuple[Any, ...]:
        """Return file, position and length of the next steps: the columns that are compared."""
        chunk, rows = self._chunk, slice(self._at, self._at + count)
        return chunk.file[rows], chunk.position[rows], chunk.length[rows]

    def next_rows(self, count: int) -> Any:
        """Return the same columns as rows of one array."""
        return np.stack([column.astype(np.uint64) for column in self.next_keys(count)], axis=1)

    def skip_steps(self, count: int) -> int:
        """Pass over `count` steps; return their instructions."""
        start, self._at = self._at, self._at + count
        return int(self._chunk.instructions[start : self._at].sum())

    def last_runs(self, count: int, most: int) -> list[InstructionRun]:
        """Return the last runs of the next `count` steps, at most `most`."""
        until = self._at + count
        return _runs_of_columns(self._chunk.last, max(self._at, until - most), until)

    def peek_runs(self, most: int) -> list[InstructionRun]:
        """Return the first runs of the next steps, without passing over them."""
        return _runs_of_columns(self._chunk.first, self._at, self._at + self.load_steps(most))

    def load_steps(self, most: int) -> int:
        """Load up to `most` of the next steps, and return how many there are."""
        ready, more = len(self._chunk.file) - self._at, []
        while ready < most and (following := next(self._chunks, None)) is not None:
            more.append(following)
            ready += len(following.file)
        if more:
            self._chunk, self._at = self._chunk.append_following_steps(self._at, more), 0
        return min(most, ready)

    def _decode_steps(self) -> Iterator[_StepColumns]:
        """Decode the stream into steps.

        Rows that do not end at a branch are joined with the next row: the decoder cut them, or the
        thread was interrupted there.
        """
        kept: _RunColumns | None = None
        while (rows := self.next_batch()) is not None:
            columns = self._columns_of_runs(rows)
            if kept is not None:
                pairs = zip(kept, columns, strict=True)
                columns = _RunColumns(*(np.concatenate(pair) for pair in pairs))
            # the step of the last row may continue in the next batch
            ends = np.flatnonzero(~_continued_row_mask(columns))
            kept = columns
            if len(ends):
                begin = int(ends[-1]) + 1
                kept = columns.slice_rows(slice(begin, None))
                yield _columns_of_complete_steps(columns.slice_rows(slice(begin)), ends)
            kept = _shorten_unfinished_step(kept)
        if kept is not None and len(kept.file):
            ends = np.append(np.flatnonzero(~_continued_row_mask(kept)), len(kept.file) - 1)
            yield _columns_of_complete_steps(kept, ends)

    def _columns_of_runs(self, rows: Rows) -> _RunColumns:
        at, position = self._regions.find_mappings(rows.start, rows.time)
        instructions = rows.instructions.astype(np.uint64)
        precision = np.zeros(len(at), np.uint8)
        if self._builds:
            position = position.copy()
        for row, side in self._builds.items():
            selected = at == row
            if not selected.any():
                continue
            if side is None:
                position[selected], precision[selected] = 0, BY_FILE
            else:
                position[selected], exact = side.positions_of_offsets(position[selected])
                precision[selected] = np.where(exact, EXACT, BY_FUNCTION)
        return _RunColumns(
            self._file_keys[at], position, precision, instructions,
            rows.start, rows.last, rows.time, rows.end,
        )  # fmt: skip


def _rows_within(batches: Iterator[Rows], first: int, stop: int) -> Iterator[Rows]:
    """Iterate over the rows that begin at the instructions from `first` up to `stop`."""
    at = 0
    for rows in batches:
        ends = at + np.cumsum(rows.instructions, dtype=np.int64)
        begins = ends - rows.instructions
        at += int(rows.instructions.sum())
        yield rows.select_rows(slice(*np.searchsorted(begins, [first, stop])))
        if at >= stop:
            return


class _RunColumns(NamedTuple):
    """Decoded runs as columns."""

    file: Any
    position: Any
    precision: Any
    instructions: Any
    start: Any
    last: Any
    time: Any
    end: Any

    def slice_rows(self, rows: slice) -> _RunColumns:
        return _RunColumns(*(column[rows] for column in self))


_RunEnds = tuple[Any, Any, Any, Any, Any]
"""Columns of `InstructionRun`."""


class _StepColumns(NamedTuple):
    """Steps as columns. `file`, `position` and `length` are compared."""

    file: Any
    position: Any
    length: Any
    instructions: Any
    """Instructions of the step."""
    first: _RunEnds
    """The first run of each step."""
    last: _RunEnds
    """The last run of each step; the same as the first if steps are exact."""

    def append_following_steps(self, at: int, following: list[_StepColumns]) -> _StepColumns:
        """Return the steps from `at` on, and those of the next chunks."""

        def concatenate_columns(one: Any, *others: Any) -> Any:
            if isinstance(one, tuple):
                return tuple(concatenate_columns(*each) for each in zip(one, *others, strict=True))
            return np.concatenate([one[at:], *others])

        return _StepColumns(
            *(concatenate_columns(*each) for each in zip(self, *following, strict=True))
        )

    @staticmethod
    def empty_columns() -> _StepColumns:
        no = np.zeros(0, np.uint64)
        return _StepColumns(no, no, no, no, (no,) * 5, (no,) * 5)


def _runs_of_columns(columns: _RunEnds, start: int, end: int) -> list[InstructionRun]:
    rows = zip(*(column[start:end].tolist() for column in columns), strict=True)
    return [
        InstructionRun(first, last, count, time, End(end)) for first, last, count, time, end in rows
    ]


def _continued_row_mask(rows: _RunColumns) -> Any:
    """Return for each row but the last whether the next row continues its step."""
    distance = rows.start[1:] - rows.last[:-1]
    end, precision = rows.end[:-1], rows.precision
    interrupted = (
        (end == End.EVENT) & (distance > 0) & (distance <= np.uint64(_MAX_INSTRUCTION_BYTES))
    )
    continued = (end == End.CUT) | interrupted
    if precision.any():
        same = (rows.file[1:] == rows.file[:-1]) & (rows.position[1:] == rows.position[:-1])
        stays = (precision[:-1] == BY_FILE) | ~np.isin(end, _LEAVING_ENDS)
        inexact = (precision[1:] != EXACT) | (precision[:-1] != EXACT)
        continued = np.where(inexact, same & stays & (precision[1:] == precision[:-1]), continued)
    return continued


def _shorten_unfinished_step(rows: _RunColumns) -> _RunColumns:
    """Replace the middle rows of an unfinished inexact step by one row with their instructions.

    A loop without calls can be most of a program; its step then stays three rows long.
    """
    if len(rows.file) <= 3 or rows.precision[0] == EXACT:
        return rows
    short = _RunColumns(*(column[[0, 1, -1]] for column in rows))
    short.instructions[1] = rows.instructions[1:-1].sum()
    return short


def _columns_of_complete_steps(rows: _RunColumns, ends: Any) -> _StepColumns:
    """Return the steps that end at the rows `ends`."""
    begins = np.append(0, ends[:-1] + 1)
    instructions = np.add.reduceat(rows.instructions, begins)
    file, position = rows.file[begins], rows.position[begins]
    if not rows.precision.any():
        runs = rows.start[begins], rows.last[ends], instructions, rows.time[begins], rows.end[ends]
        return _StepColumns(file, position, instructions, instructions, runs, runs)
    exact = rows.precision[begins] == EXACT
    first = (
        rows.start[begins],
        np.where(exact, rows.last[ends], rows.last[begins]),
        np.where(exact, instructions, rows.instructions[begins]),
        rows.time[begins],
        np.where(exact, rows.end[ends], rows.end[begins]),
    )
    last = (
        np.where(exact, rows.start[begins], rows.start[ends]),
        rows.last[ends],
        np.where(exact, instructions, rows.instructions[ends]),
        np.where(exact, rows.time[begins], rows.time[ends]),
        rows.end[ends],
    )
    length = np.where(exact, instructions, 0)
    return _StepColumns(file, position, length, instructions, first, last)


LOOKAHEAD_STEPS = (1 << 6, 1 << 10, 1 << 14, 1 << 17)
"""Steps of each path in which reconvergence is searched, one after the other."""
_HASH_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)
_END_MARKER = np.uint64((1 << 64) - 1)


def find_reconvergence(
    left: Any, right: Any, min_match: int, ended: tuple[bool, bool]
) -> tuple[int, int] | None:
    """Return how many rows of each path to skip so that the next `min_match` rows are equal.

    Skips as few rows as possible, and of these as few of `left` as possible. `left` and `right` are
    arrays of rows of equal width. `ended` says of each whether the path has no more rows; the ends
    of two paths are equal. None if they do not reconverge.
    """
    windows = [
        _hash_windows(_hash_rows(rows), min_match, end)
        for rows, end in zip((left, right), ended, strict=True)
    ]
    (ours, at), (theirs, there) = (np.unique(each, return_index=True) for each in windows)
    _, one, other = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    if not len(one):
        return None
    ours, theirs = at[one], there[other]
    nearest = np.lexsort((ours, ours + theirs))[0]
    return int(ours[nearest]), int(theirs[nearest])


def _hash_rows(rows: Any) -> Any:
    found = np.zeros(len(rows), np.uint64)
    for column in rows.T:
        found = _add_to_hashes(found, column)
    return found


def _hash_windows(numbers: Any, size: int, ended: bool) -> Any:
    """Return a hash of each window of `size` rows. After the end follows a marker."""
    if ended:
        numbers = np.append(numbers, np.full(size, _END_MARKER))
    count = max(0, len(numbers) - size + 1)
    found = np.zeros(count, np.uint64)
    for position in range(size):
        found = _add_to_hashes(found, numbers[position : position + count])
    return found


def _add_to_hashes(hashes: Any, numbers: Any) -> Any:
    hashes = (hashes + numbers + np.uint64(1)) * _HASH_FACTOR
    return hashes ^ hashes >> np.uint64(29)


_MAX_DIVERGENCES = 10_000
_MAX_LOOKAHEAD = 1 << 23
"""Steps that are examined in all to find reconvergence."""


@dataclass(frozen=True, slots=True)
class FirstDivergence:
    """The first divergence of two paths, as runs of each path."""

    before: tuple[list[InstructionRun], list[InstructionRun]]
    """The last equal runs, the latest last."""
    after: tuple[list[InstructionRun], list[InstructionRun]]
    """The runs that follow; none at the end of a path."""
    shared: int
    """Instructions at the start of `after` that are still equal."""


class DivergencePoint(NamedTuple):
    """A divergence as addresses: the last equal IP, and the next IP of each path (None at its end).

    On side `sequential`, the next IP is that of the instruction after the given one in memory.
    """

    last: int | None
    left: int | None
    right: int | None
    sequential: int | None = None


@dataclass(slots=True)
class DivergenceLog:
    """What follows the first divergence."""

    instructions: int = 0
    """Instructions that are equal again."""
    unmatched: tuple[int, int] = (0, 0)
    """Instructions that only one path has, of each."""
    times_by_point: dict[DivergencePoint, int] = field(default_factory=dict)
    """How often the paths diverge at each point."""
    times: dict[DivergencePoint, tuple[int, int]] = field(default_factory=dict)
    """TSC ticks of each path at the first divergence at a point."""
    whole: bool = True
    """Whether the comparison went to the end of both paths: they reconverged each time, within the
    limits.
    """
    divergences: int = 0

    def count_divergence(self, position: DivergencePoint, times: tuple[int, int]) -> None:
        """Count one divergence."""
        self.times.setdefault(position, times)
        self.times_by_point[position] = self.times_by_point.get(position, 0) + 1
        self.divergences += 1


def compare_paths(
    left: ExecutionPath, right: ExecutionPath, steps: int, min_match: int
) -> tuple[tuple[int, int], FirstDivergence | None, DivergenceLog | None]:
    """Return the number of equal instructions of each path, the first divergence, and what follows.

    The numbers differ if functions of two builds are one step. The last two are None if the paths
    are equal. The paths reconverge where `min_match` steps are equal; `steps` runs are kept after a
    divergence.
    """
    equal = [_skip_equal_rows(left, right)] * 2
    before: tuple[deque[InstructionRun], deque[InstructionRun]] = (
        deque(maxlen=MAX_KEPT_RUNS),
        deque(maxlen=MAX_KEPT_RUNS),
    )
    divergence = log = None
    examined = 0
    while True:
        count = min(left.count_loaded_steps(), right.count_loaded_steps())
        same = _equal_prefix_length(left.next_keys(count), right.next_keys(count))
        if same:
            for path, runs in zip((left, right), before, strict=True):
                # Only the last run is used after the first divergence.
                runs.extend(path.last_runs(same, MAX_KEPT_RUNS if log is None else 1))
            instructions, right_instructions = left.skip_steps(same), right.skip_steps(same)
            if log is None:
                equal[0] += instructions
                equal[1] += right_instructions
            else:
                log.instructions += instructions
        if same == count and count:
            continue
        after = left.peek_runs(steps), right.peek_runs(steps)
        if not any(after):
            return (equal[0], equal[1]), divergence, log
        shared = _common_prefix_length(left, right)
        if log is None:
            divergence = FirstDivergence((list(before[0]), list(before[1])), after, shared)
            equal = [equal[0] + shared, equal[1] + shared]
            log = DivergenceLog()
        else:
            log.instructions += shared
        log.count_divergence(
            *_divergence_point(before[0], (left.peek_runs(2), right.peek_runs(2)), shared)
        )
        gap, more = _distance_to_reconvergence(left, right, min_match)
        examined += more
        log.whole = gap is not None
        if gap is not None:
            passed = [path.skip_steps(rows) for path, rows in zip((left, right), gap, strict=True)]
            less = shared if all(gap) else 0
            log.instructions -= shared - less
            unmatched = zip(log.unmatched, passed, strict=True)
            log.unmatched = tuple(sum(pair) - less for pair in unmatched)  # type: ignore[assignment]
            log.whole = examined < _MAX_LOOKAHEAD and log.divergences < _MAX_DIVERGENCES
        if not log.whole:
            return (equal[0], equal[1]), divergence, log


def _skip_equal_rows(left: ExecutionPath, right: ExecutionPath) -> int:
    """Pass over rows that are equal from the start of both paths; return their instructions.

    Stops at the end of a step, at least `MAX_KEPT_RUNS` steps before the first difference.
    """
    if not left.has_same_positions(right):
        return 0
    paths, instructions = (left, right), 0
    kept: deque[tuple[tuple[Rows, Rows], int]] = deque()
    """Equal rows of both paths, and the number of steps that end in them."""
    while True:
        one, other = left.next_batch(), right.next_batch()
        if one is None or other is None:
            break
        size = min(len(one), len(other))
        pair = one.select_rows(slice(size)), other.select_rows(slice(size))
        # The next row may continue a step that ends so.
        is_cut = size and pair[0].end[-1] in (End.CUT, End.EVENT)
        if not size or is_cut or not _are_rows_equal(*pair):
            break
        for path, rows in zip(paths, (one, other), strict=True):
            path.put_back([rows.select_rows(slice(size, None))])
        ends = pair[0].end
        kept.append((pair, int(((ends != End.CUT) & (ends != End.EVENT)).sum())))
        while sum(steps for _, steps in kept) - kept[0][1] >= MAX_KEPT_RUNS:
            instructions += int(kept.popleft()[0][0].instructions.sum())
    for side, (path, last) in enumerate(zip(paths, (one, other), strict=True)):
        path.put_back([*(pair[side] for pair, _ in kept), *([last] if last is not None else [])])
    return instructions


def _are_rows_equal(one: Rows, other: Rows) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("start", "last", "instructions", "end")
    )


def _divergence_point(
    before: Sequence[InstructionRun],
    after: tuple[list[InstructionRun], list[InstructionRun]],
    shared: int,
) -> tuple[DivergencePoint, tuple[int, int]]:
    """Return the point of a divergence, and the time of each path there."""
    one, other = (runs[0].time if runs else 0 for runs in after)
    if not shared:
        left, right = (runs[0].start if runs else None for runs in after)
        return DivergencePoint(before[-1].last if before else None, left, right), (one, other)
    # Both runs start at one IP; the longer one continues where the shorter one branches.
    longer = int(after[0][0].instructions < after[1][0].instructions)
    short = after[1 - longer]
    lasts = [runs[0].start + short[0].last - short[0].start for runs in after]
    targets: list[int | None] = [short[1].start if len(short) > 1 else None] * 2
    targets[longer] = lasts[longer]
    return DivergencePoint(lasts[0], targets[0], targets[1], longer), (one, other)


def _distance_to_reconvergence(
    left: ExecutionPath, right: ExecutionPath, min_match: int
) -> tuple[tuple[int, int] | None, int]:
    """Return how many steps of each path to skip until they reconverge, and how many were examined.

    The first value is None if the paths do not reconverge within `LOOKAHEAD_STEPS`.
    """
    examined = 0
    for width in LOOKAHEAD_STEPS:
        counts = [path.load_steps(width) for path in (left, right)]
        examined += sum(counts)
        rows = [path.next_rows(count) for path, count in zip((left, right), counts, strict=True)]
        ended = counts[0] < width, counts[1] < width
        gap = find_reconvergence(rows[0], rows[1], min_match, ended)
        if gap is not None:
            return gap, examined
        if all(ended):
            break
    return None, examined


def _equal_prefix_length(left: tuple[Any, ...], right: tuple[Any, ...]) -> int:
    """Return how many rows are equal, from the first on."""
    # Paths that diverge often have few equal rows: compare a few first.
    count, start, size = len(left[0]), 0, 64
    while start < count:
        rows = slice(start, start + size)
        different = np.zeros(min(size, count - start), bool)
        for one, other in zip(left, right, strict=True):
            different |= one[rows] != other[rows]
        if different.any():
            return start + int(different.argmax())
        start, size = start + size, 4 * size
    return count


def _common_prefix_length(left: ExecutionPath, right: ExecutionPath) -> int:
    """Return how many instructions the next two runs share; they may start at the same IP."""
    if not left.count_loaded_steps() or not right.count_loaded_steps():
        return 0
    (ours, theirs) = (
        tuple(int(column[0]) for column in path.next_keys(1)) for path in (left, right)
    )
    return min(ours[2], theirs[2]) if ours[:2] == theirs[:2] else 0


class DivergenceSide:
    """Describes instructions of one recording around a divergence."""

    def __init__(self, path: ExecutionPath) -> None:
        self._trace = path.trace
        self._stream = path.stream

    def instructions_around(
        self, divergence: FirstDivergence, side: int, steps: int
    ) -> tuple[tuple[ListedInstruction, ...], tuple[ListedInstruction, ...]]:
        """Return the last equal instructions, and the first that differ."""
        before = [
            position
            for run in divergence.before[side][-steps:]
            for position in self._instructions_of(run)
        ]
        after = [
            position for run in divergence.after[side] for position in self._instructions_of(run)
        ]
        before.extend(after[: divergence.shared])
        after = after[divergence.shared :]
        return (
            tuple(self.list_instruction_at(*position) for position in before[-steps:]),
            tuple(self.list_instruction_at(*position) for position in after[:steps]),
        )

    def _instructions_of(self, run: InstructionRun) -> Iterator[tuple[int, int]]:
        """Iterate over IP and time of the instructions of a run."""
        from rtit._core import decode_instruction

        ip = run.start
        for _ in range(run.instructions):
            yield ip, run.time
            if ip == run.last:
                return
            try:
                length, *_ = decode_instruction(self._code_bytes_at(ip, run.time), ip)
            except ValueError:
                return
            ip += length

    def ip_after_instruction(self, ip: int, time: int) -> int:
        """Return the IP of the next instruction in memory; `ip` if the code is unknown."""
        from rtit._core import decode_instruction

        try:
            length, *_ = decode_instruction(self._code_bytes_at(ip, time), ip)
        except ValueError:
            return ip
        return ip + length

    def list_instruction_at(self, ip: int, time: int) -> ListedInstruction:
        """Return the instruction at an IP, as of a TSC time."""
        from rtit._core import disassemble

        tid, symbols = self._stream.tid, self._trace.symbols
        position = symbols.source_line(tid, time, ip)
        symbol = symbols.lookup(tid, time, ip)
        return ListedInstruction(
            ip,
            str(symbol),
            f"{PurePath(position[0]).name}:{position[1]}" if position is not None else "",
            disassemble(self._code_bytes_at(ip, time), ip),
            PurePath(symbol.module).name,
        )

    def _code_bytes_at(self, ip: int, time: int) -> bytes:
        return self._stream.image.native.read(time, ip, _MAX_INSTRUCTION_BYTES)
