"""Follows calls and returns: which function called which, how often, and in which context.

Native code (`ProcessCalls.totals`) decodes a stream in order and keeps a stack per thread.
`CallTable` adds up the calls of all streams by caller and callee. `CallContexts` is the tree of
calling contexts, which `pprof` needs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rtit._core import ProcessCalls
from rtit.errors import UnsupportedError
from rtit.image import KERNEL_START, has_file
from rtit.image.mappings import FOREVER
from rtit.profile.builder import Function, unmapped_function_at
from rtit.profile.tables import NO_BINARY
from rtit.trace.tables.context_runs import ContextRuns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.profile.tables import Binary, Profile
    from rtit.trace import Stream, Trace

NO_INDEX = (1 << 64) - 1
"""Stands for no value in columns of native code."""


class CallContexts:
    """The tree of calling contexts: of each its parent, its call, and the instructions of the
    callee itself.

    There may be a million contexts, each thousands of calls deep, so stacks are not stored.
    """

    def __init__(self) -> None:
        self._parents = array("q")
        self._calls = array("Q")
        self._instructions = array("Q")
        # in the order in which the contexts got a count
        self._executed = array("Q")
        # by `_context_key`; built for the second stream
        self._numbers: dict[int, int] = {}
        self._runs: list[ContextRuns] = []

    def add_stream_contexts(self, columns: Mapping[str, memoryview], calls: Sequence[int]) -> None:
        """Add the contexts of a stream, as `ProcessCalls.totals` returns them.

        `calls` maps the call numbers of the stream to those of the `CallTable`.
        """
        if self._calls and not self._numbers:
            known = zip(self._parents, self._calls, strict=True)
            self._numbers = {_context_key(*row): number for number, row in enumerate(known)}
        merges = bool(self._calls) or len({*calls}) < len(calls)
        numbers = array("q")
        rows = zip(columns["parent"], columns["call"], columns["own"], strict=True)
        for parent, call, instructions in rows:
            merged_parent = numbers[parent] if parent != NO_INDEX else -1
            number = self._number_of_context(merged_parent, calls[call], merges=merges)
            numbers.append(number)
            if instructions and not self._instructions[number]:
                self._executed.append(number)
            self._instructions[number] += instructions

        if len(columns.get("run_context", ())):
            context = np.asarray(numbers)[np.asarray(columns["run_context"])]
            names = ("run_binary", "run_offset", "run_instructions", "run_count")
            self._runs.append(ContextRuns(context, *(np.asarray(columns[name]) for name in names)))

    def take_runs(self) -> ContextRuns:
        """Return the runs of all contexts, sorted by context, and forget them."""
        runs, self._runs = self._runs or [ContextRuns.empty()], []
        joined = ContextRuns(*(np.concatenate(column) for column in zip(*runs, strict=True)))
        order = np.argsort(joined.context, kind="stable")
        return ContextRuns(*(column[order] for column in joined))

    def calls_of_contexts(self) -> NDArray[np.uint64]:
        """Return the call of each context."""
        return np.asarray(self._calls)

    def instructions_of_contexts(self) -> NDArray[np.uint64]:
        """Return the instructions of the called function itself, of each context."""
        return np.asarray(self._instructions)

    def _number_of_context(self, parent: int, call: int, *, merges: bool) -> int:
        number = len(self._calls)
        if merges:
            known = self._numbers.setdefault(_context_key(parent, call), number)
            if known != number:
                return known
        self._parents.append(parent)
        self._calls.append(call)
        self._instructions.append(0)
        return number

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over contexts in which something ran, with their instructions."""
        return ((number, self._instructions[number]) for number in self._executed)

    def calls_up_to_root(self, context: int) -> Iterator[tuple[int, int]]:
        """Iterate from a context to its outermost parent, with the call of each."""
        while context >= 0:
            yield context, self._calls[context]
            context = self._parents[context]


def _context_key(parent: int, call: int) -> int:
    return parent + 1 << 64 | call


class CodeLocation(NamedTuple):
    """A binary (`Binary.number`) and an offset in its file.

    Without a file: NO_BINARY and an address; 0 for the caller of the first function.
    """

    binary: int
    offset: int


class CallTotals(NamedTuple):
    """How often a callee was called from one location, and the instructions until it returned.

    Calls of a function that is running on the same stack have no instructions, so that the sum over
    all calls of a function has each instruction once.
    """

    target: CodeLocation
    calls: int
    inclusive: int


class CallTable:
    """All calls, by caller and callee, as columns."""

    def __init__(self) -> None:
        self.contexts = CallContexts()
        """The calling contexts of the calls."""
        self.unmapped_functions: dict[CodeLocation, Function] = {}
        """Functions at locations that are in no binary."""
        self.source_binary, self.source = array("q"), array("Q")
        self._target_binary, self._target = array("q"), array("Q")
        self._count, self._inclusive = array("Q"), array("Q")
        # by `_call_key`
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.source)

    def caller_and_callee(self, number: int) -> tuple[CodeLocation, CodeLocation]:
        """Return caller and callee of a call."""
        source = CodeLocation(self.source_binary[number], self.source[number])
        return source, CodeLocation(self._target_binary[number], self._target[number])

    def counts_of_call(self, number: int) -> CallTotals:
        """Return the counts of a call."""
        target = CodeLocation(self._target_binary[number], self._target[number])
        return CallTotals(target, self._count[number], self._inclusive[number])

    def callee_columns(self) -> tuple[Any, Any]:
        """Return binary and offset of the callee of each call."""
        return np.asarray(self._target_binary), np.asarray(self._target)

    def offsets_in(self, binary: Binary) -> NDArray[np.uint64]:
        """Return the offsets of callers and callees in a binary."""
        ends = (
            (self.source_binary, self.source),
            (self._target_binary, self._target),
        )
        return np.unique(
            np.concatenate(
                [np.asarray(offset)[np.asarray(number) == binary.number] for number, offset in ends]
            )
        )

    def add_calls(
        self, source: CodeLocation, target: CodeLocation, count: int, inclusive: int
    ) -> int:
        """Add calls from one location to another, and return their number."""
        number = self._numbers.setdefault(_call_key(source, target), len(self))
        if number == len(self):
            self.source_binary.append(source.binary)
            self.source.append(source.offset)
            self._target_binary.append(target.binary)
            self._target.append(target.offset)
            self._count.append(0)
            self._inclusive.append(0)
        self._count[number] += count
        self._inclusive[number] += inclusive
        return number


def _call_key(source: CodeLocation, target: CodeLocation) -> int:
    """Return one integer for both locations."""
    binaries = source.binary - NO_BINARY << 32 | target.binary - NO_BINARY
    return (binaries << 64 | source.offset) << 64 | target.offset


def count_calls(
    trace: Trace, streams: Sequence[Stream], profile: Profile, *, contexts: bool = False
) -> CallTable:
    """Decode the streams again, and return their calls.

    Raises UnsupportedError for one of several threads whose kernel code was traced.
    """
    result = CallTable()
    names: dict[Function, Function] = {}
    for stream in streams:
        ends, columns = follow_calls(trace, stream, profile, with_runs=contexts)
        start_time = trace.images.mappings(stream.tid).program_start
        numbers = array("Q")
        for pair, count, inclusive in zip(
            ends, columns["calls"], columns["inclusive"], strict=True
        ):
            for end in pair:
                if end.binary == NO_BINARY and end.offset and end not in result.unmapped_functions:
                    name = _last_function_at(trace, stream.tid, end.offset, start_time)
                    # equal names share one object
                    result.unmapped_functions[end] = names.setdefault(name, name)
            numbers.append(result.add_calls(*pair, count, inclusive))
        if contexts:
            result.contexts.add_stream_contexts(columns, numbers)
        stream.discard_decoder()
    return result


def follow_calls(
    trace: Trace, stream: Stream, profile: Profile, *, with_runs: bool = False
) -> tuple[Iterator[tuple[CodeLocation, CodeLocation]], dict[str, memoryview]]:
    """Return caller and callee of each call of a stream, and the columns of `ProcessCalls.totals`.

    With `with_runs`, the columns have runs, and `run_binary` their binaries as in `CodeLocation`.
    Adds calls beyond the limits of native code to the losses of the profile.
    """
    if stream.needs_extraction:
        raise UnsupportedError(
            f"{stream.title}: the kernel was traced, so rtit can follow calls only for all "
            "threads of the CPU together: leave out --tid, --pid and --comm"
        )
    numbers = {(each.path, each.build_id): each.number for each in profile.binaries}
    regions = sorted(trace.images.mappings(stream.tid), key=lambda each: each.start)
    losses = profile.losses
    # a pair of locations takes as much memory as two counters
    losses.max_pairs = stream.max_counters // 2
    symbols = trace.symbols.names(stream.tid)
    calls = ProcessCalls([stream.native_decoder()], symbols, True, losses.max_pairs)
    found = calls.totals(stream.max_counters if with_runs else 0)
    # views, because there may be a million calls
    columns = {name: memoryview(column) for name, column in found.items()}
    losses.deep_calls += columns["deep_calls"][0]
    losses.calls_beyond_pairs += columns["calls_beyond_pairs"][0]

    def binary_of_file(path: str, build_id: bytes | None) -> int:
        symbols = trace.images.files.symbols(path, build_id)
        build_id = build_id or (symbols.elf.build_id if symbols else None)
        return numbers.get((path, build_id), NO_BINARY)

    is_file = [has_file(each.path) and each.start < KERNEL_START for each in regions]
    binaries = [
        binary_of_file(each.path, each.build_id) if known else NO_BINARY
        for each, known in zip(regions, is_file, strict=True)
    ]

    def code_location(region: int, offset: int) -> CodeLocation:
        if region == NO_INDEX:
            return CodeLocation(NO_BINARY, offset)
        if not is_file[region]:
            mapping = regions[region]
            return CodeLocation(NO_BINARY, offset - mapping.offset + mapping.start)
        return CodeLocation(binaries[region], offset)

    # the last stands for no region
    binary_of_region = np.array([*binaries, NO_BINARY], np.int32)
    run_regions = np.minimum(np.asarray(columns["run_region"]), len(regions))
    columns["run_binary"] = memoryview(binary_of_region[run_regions])
    names = ("from_region", "from_offset", "to_region", "to_offset")
    rows = zip(*(columns[name] for name in names), strict=True)
    return ((code_location(*row[:2]), code_location(*row[2:])) for row in rows), columns


def _last_function_at(trace: Trace, tid: int, address: int, since: int) -> Function:
    """Return the last function that was at an address after `since`."""
    there = [
        each.until
        for each in trace.images.mappings(tid)
        if each.start <= address < each.end and each.until > since
    ]
    return unmapped_function_at(trace, tid, address, max(there, default=FOREVER) - 1)
