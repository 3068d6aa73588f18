"""A function with its instructions, source lines and loops, and how often each ran.

All counts come from the totals of instructions and edges, which are independent of the order of
execution, except for the least and the most iterations of a loop: these need the order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rtit.annotation.debug_information import DebugInformation
from rtit.annotation.function_code import function_ranges, read_instructions
from rtit.annotation.loop_iterations import iteration_bounds
from rtit.annotation.loops import FoundLoop, find_loops
from rtit.errors import UsageError
from rtit.image import has_file
from rtit.image.source_lines import read_source
from rtit.profile.builder import build_profile
from rtit.profile.regions import find_function
from rtit.trace import End
from rtit.x86 import InstructionClass

if TYPE_CHECKING:
    from rtit.image import FileFunction, Images
    from rtit.image.inlined_calls import Frame
    from rtit.profile.tables import Binary, Edges, Profile
    from rtit.trace import Selection, Stream, Trace

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{1,16}")
_MAX_OWN_LINES = 1 << 16
"""Lines of the longest function that is shown with its lines without code."""


@dataclass(frozen=True, slots=True)
class BranchTarget:
    """Where an indirect branch went, and how often.

    `name` is as printed: function+0x12, or the address. `file` is the path of the code, "" for code
    in no file; `address` is that in the file.
    """

    name: str
    file: str
    address: int
    count: int


@dataclass(frozen=True, slots=True)
class AnnotatedInstruction:
    """An instruction, and how often it ran.

    `address` is that in the file. `text` is in Intel syntax. `line` is 0 and `file` "" if unknown.
    `frames` are the inlined functions that the instruction belongs to, the innermost first; none
    for code of the function itself. `taken` and `not_taken` are None except for conditional
    branches. `target` is the address of a direct branch, and `target_name` its name. `targets` are
    those of an indirect jump or call, the most frequent first.
    """

    address: int
    code: bytes
    text: str
    count: int
    kind: InstructionClass
    file: str
    line: int
    frames: tuple[Frame, ...] = ()
    taken: int | None = None
    not_taken: int | None = None
    target: int | None = None
    target_name: str = ""
    targets: tuple[BranchTarget, ...] = ()


@dataclass(frozen=True, slots=True)
class AnnotatedLine:
    """A source line. `count` and `addresses` (of its instructions) are None and empty for a line
    without code; `text` is None if the source file is missing.

    The count is as in `rtit.coverage`: the sum over the copies of the line, which are inlined
    calls, each with the count of its most frequent first instruction.
    """

    file: str
    line: int
    text: str | None
    count: int | None
    addresses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: addresses of its first instruction (`start`) and of all its instructions.

    `entries`: how often the loop was entered from outside. `iterations`: how often its first
    instruction ran. `least` and `most` iterations of one entry are None if unknown: see `annotate`.
    `depth` is 1 for an outermost loop.
    """

    start: int
    addresses: tuple[int, ...]
    depth: int
    entries: int
    iterations: int
    least: int | None = None
    most: int | None = None

    @property
    def mean(self) -> float | None:
        """The mean number of iterations of an entry; None if the loop was never entered."""
        return self.iterations / self.entries if self.entries else None


@dataclass(frozen=True, slots=True)
class AnnotatedFunction:
    """A function of a recording.

    `name` is demangled, `path` that of the file with the code. `address` is that of the entry in
    the file. `instructions` are in the order of the file, the entry first; `lines` are those of the
    function's own source file first. `calls`: how often it was entered. `recording_instructions`
    are those of all selected threads. `notes` are sentences: why there is no source, and others.
    `losses` are sentences about what is missing from the counts of the recording, and `has_gaps` is
    true if these counts may be too small.
    """

    name: str
    path: str
    build_id: bytes | None
    address: int
    calls: int
    executed_instructions: int
    recording_instructions: int
    instructions: tuple[AnnotatedInstruction, ...]
    lines: tuple[AnnotatedLine, ...]
    loops: tuple[Loop, ...]
    notes: tuple[str, ...]
    losses: tuple[str, ...]
    has_gaps: bool


def annotate(
    trace: Trace, function: str, where: Selection | None = None, *, loop_bounds: bool = False
) -> AnnotatedFunction:
    """Return a function of a recording with the counts of the selected threads.

    `function` is NAME, NAME@FILE, or the address of an instruction in a process (0x401136); `where`
    selects threads. `loop_bounds`: decode the threads a second time, in order, for the least and
    the most iterations of each loop; without it they are known only if they follow from the totals.
    Raises UsageError if no file has the function, if several functions have the name, or if no code
    of the file ran; what decoding raises.
    """
    streams = trace.by_thread(where, always_split=loop_bounds)
    return annotate_streams(trace, streams, function, loop_bounds=loop_bounds)


def annotate_streams(
    trace: Trace, streams: Sequence[Stream], function: str, *, loop_bounds: bool = False
) -> AnnotatedFunction:
    """As `annotate`, for streams; with `loop_bounds` each of them must have one thread."""
    path, offset = _find_in_files(trace.images, function, streams)
    profile = build_profile(trace, streams)
    binary, found = _find_in_profile(profile, function, path, offset)
    code = _FunctionCode(binary, found)
    annotator = _Annotator(profile, binary, code, _read_debug_information(binary, [code]))
    if loop_bounds:
        annotator.decode_loop_bounds(trace.images, streams)
    return annotator.annotated()


def annotate_function(
    profile: Profile, binary: Binary, function: FileFunction
) -> AnnotatedFunction:
    """Return one function: see `annotate_functions`."""
    [found] = annotate_functions(profile, binary, [function])
    return found


def annotate_functions(
    profile: Profile, binary: Binary, functions: Sequence[FileFunction]
) -> list[AnnotatedFunction]:
    """Return functions of a binary with the counts of a profile.

    `binary` is one of `profile.binaries`, and `functions` are of `binary.symbols.functions`. The
    debug information is read once for all of them.
    """
    codes = [_FunctionCode(binary, each) for each in functions]
    debug = _read_debug_information(binary, codes)
    return [_Annotator(profile, binary, code, debug).annotated() for code in codes]


def _find_in_files(images: Images, text: str, streams: Sequence[Stream]) -> tuple[str, int]:
    """Return the file of a function that the user named, and the offset. Raises UsageError."""
    pids = [pid for stream in streams for pid in stream.space_pids]
    path, offset = (
        _find_address(images, int(text, 16), pids)
        if _ADDRESS.fullmatch(text)
        else find_function(images, text, pids, "function")[:2]
    )
    if not has_file(path):
        raise UsageError(
            f"function {text}: rtit does not annotate code of the kernel or of a JIT compiler"
        )
    return path, offset


def _find_in_profile(
    profile: Profile, text: str, path: str, offset: int
) -> tuple[Binary, FileFunction]:
    """Return a function that the user named, and its binary. Raises UsageError."""
    for binary in profile.binaries:
        function = binary.symbols.find_function(offset) if binary.path == path else None
        if function is not None:
            return binary, function
    raise UsageError(f"function {text}: no code of {path} ran")


def _find_address(images: Images, address: int, pids: Sequence[int]) -> tuple[str, int]:
    for pid in pids:
        for mapping in images.mappings(pid):
            offset = address - mapping.start + mapping.offset
            if mapping.start <= address < mapping.end:
                symbols = images.files.symbols(mapping.path, mapping.build_id)
                if symbols is not None and symbols.find_function(offset) is not None:
                    return mapping.path, offset
    raise UsageError(f"function {address:#x}: no function is at this address")


class _FunctionCode:
    """The ranges of a function in its file, and its instructions."""

    def __init__(self, binary: Binary, function: FileFunction) -> None:
        self.function = function
        self.ranges = function_ranges(binary.symbols, function)
        self.instructions = list(read_instructions(binary, self.ranges))
        self.offsets = np.array([each.offset for each in self.instructions], np.uint64)


def _read_debug_information(binary: Binary, codes: Sequence[_FunctionCode]) -> DebugInformation:
    offsets = [each.offsets for each in codes] or [np.zeros(0, np.uint64)]
    return DebugInformation(binary.symbols, np.unique(np.concatenate(offsets)))


class _Annotator:
    """Annotates one function. Offsets are those in the file."""

    def __init__(
        self, profile: Profile, binary: Binary, code: _FunctionCode, debug: DebugInformation
    ) -> None:
        self._profile, self._binary, self._function = profile, binary, code.function
        self._symbols, self._debug = binary.symbols, debug
        self._ranges, self._code, self._offsets = code.ranges, code.instructions, code.offsets
        addresses = binary.symbols.addresses(code.offsets).tolist()
        self._addresses: dict[int, int] = dict(zip(code.offsets.tolist(), addresses, strict=True))
        self._counts = self._execution_counts()
        self._edges = self._edges_by_source()
        self._loops = find_loops(self._code, self._indirect_targets())
        self._loop_bounds: dict[int, tuple[int, int]] = {}

    def decode_loop_bounds(self, images: Images, streams: Sequence[Stream]) -> None:
        """Decode streams in order for the least and the most iterations of the loops."""
        self._loop_bounds = iteration_bounds(
            images, streams, self._binary.path, self._offsets.tolist(), self._loops
        )

    def annotated(self) -> AnnotatedFunction:
        """Return the function."""
        from rtit._core import demangle

        losses = self._profile.losses
        instructions = tuple(self._instructions())
        lines = tuple(self._lines(instructions))
        loops = tuple(map(self._count_loop, self._loops))
        # a loop can begin at the entry of the function
        entries = {loop.start: loop.entries for loop in loops}
        return AnnotatedFunction(
            demangle(self._function.name),
            self._binary.path,
            self._binary.build_id,
            self._function.address,
            entries.get(self._function.address, self._counts.get(self._function.offset, 0)),
            sum(self._counts.values()),
            self._profile.instructions,
            instructions,
            lines,
            loops,
            tuple(self._notes(lines)),
            tuple(losses.describe_losses(unmapped=False)),
            losses.has_gaps,
        )

    def _execution_counts(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for start, end in self._ranges:
            low, high = np.searchsorted(self._binary.offset, [start, end]).tolist()
            columns = self._binary.offset[low:high], self._binary.count[low:high]
            counts.update(zip(*(column.tolist() for column in columns), strict=True))
        return counts

    def _edges_by_source(self) -> dict[int, list[tuple[int, int, int, int]]]:
        """Return (binary, target, kind, count) of the edges from each instruction."""
        edges: Edges = self._binary.edges
        found: dict[int, list[tuple[int, int, int, int]]] = {}
        is_here = np.zeros(len(edges.source), np.bool_)
        for start, end in self._ranges:
            is_here |= (edges.source >= np.uint64(start)) & (edges.source < np.uint64(end))
        here = edges.select_rows(is_here & (edges.source_binary == self._binary.number))
        columns = here.source, here.target_binary, here.target, here.kind, here.count
        for source, *rest in zip(*(column.tolist() for column in columns), strict=True):
            found.setdefault(source, []).append(tuple(rest))
        return found

    # Instructions

    def _instructions(self) -> Iterator[AnnotatedInstruction]:
        from rtit._core import disassemble

        for each in self._code:
            address = self._addresses[each.offset]
            file, line, _ = self._debug.source_line(address)
            target = None if each.target is None else each.target - each.offset + address
            taken = not_taken = None
            if each.kind == InstructionClass.CONDITIONAL:
                taken = self._edge_count(each.offset, End.CONDITIONAL)
                not_taken = self._edge_count(each.offset, End.CUT)
            yield AnnotatedInstruction(
                address,
                each.code,
                disassemble(each.code, address, self._symbols.elf.bits),
                self._counts.get(each.offset, 0),
                each.kind,
                file,
                line,
                self._debug.frames(each.offset, file, line),
                taken,
                not_taken,
                target,
                "" if each.target is None else self._name_of_code(self._binary, each.target),
                tuple(self._targets(each.offset)),
            )

    def _edge_count(self, offset: int, kind: End) -> int:
        return sum(each[3] for each in self._edges.get(offset, ()) if each[2] == kind)

    def _targets(self, offset: int) -> Iterator[BranchTarget]:
        """Iterate over the targets of an indirect jump or call, the most frequent first."""
        edges = [
            each
            for each in self._edges.get(offset, ())
            if each[2] in (End.INDIRECT_JUMP, End.INDIRECT_CALL)
        ]
        binaries = {each.number: each for each in self._profile.binaries}
        for number, target, _, count in sorted(edges, key=lambda each: (-each[3], *each[:2])):
            binary = binaries.get(number)
            if binary is None:
                yield BranchTarget(f"{target:#x}", "", target, count)
            else:
                address = binary.symbols.address(target)
                yield BranchTarget(self._name_of_code(binary, target), binary.path, address, count)

    def _name_of_code(self, binary: Binary, offset: int) -> str:
        """Return function+0x12 for an offset in a binary."""
        from rtit._core import demangle

        found = binary.symbols.find_function(offset)
        if found is None:
            return f"{binary.name}+{binary.symbols.address(offset):#x}"
        distance = offset - found.offset
        name = demangle(found.name)
        if distance:
            name += f"+{distance:#x}"
        return name if binary is self._binary else f"{name}@{binary.name}"

    # Source lines

    def _lines(self, instructions: Sequence[AnnotatedInstruction]) -> Iterator[AnnotatedLine]:
        counts = self._line_counts()
        addresses: dict[tuple[str, int], list[int]] = {}
        for each in instructions:
            if each.line:
                addresses.setdefault((each.file, each.line), []).append(each.address)
        own_file, own_lines = self._own_lines(instructions)
        for file in dict.fromkeys([own_file, *sorted({file for file, _ in addresses})]):
            numbers = {line for path, line in addresses if path == file}
            text = read_source(file) if numbers else []
            if file == own_file and text:
                numbers.update(own_lines)
            for number in sorted(numbers):
                here = addresses.get((file, number), [])
                yield AnnotatedLine(
                    file,
                    number,
                    _line_of(text, number),
                    counts.get((file, number), 0) if here else None,
                    tuple(here),
                )

    @staticmethod
    def _own_lines(instructions: Sequence[AnnotatedInstruction]) -> tuple[str, range]:
        """Return the source file of the function, and its lines from the first with code to the
        last, without those of inlined functions.
        """
        own = [each for each in instructions if each.line and not each.frames]
        if not own:
            return "", range(0)
        lines = [each.line for each in own if each.file == own[0].file]
        first, last = min(lines), max(lines)
        return own[0].file, range(first, last + 1 if last - first < _MAX_OWN_LINES else first)

    def _line_counts(self) -> dict[tuple[str, int], int]:
        """Return the count of each line: of each copy the greatest count of the first instructions,
        and of these the sum.
        """
        copies: dict[tuple[str, int, int], int] = {}
        for offset, address in self._addresses.items():
            file, line, is_first = self._debug.source_line(address)
            if is_first:
                key = file, line, self._debug.inlined_call(offset)
                copies[key] = max(copies.get(key, 0), self._counts.get(offset, 0))
        counts: dict[tuple[str, int], int] = {}
        for (name, line, _), count in copies.items():
            counts[name, line] = counts.get((name, line), 0) + count
        return counts

    def _notes(self, lines: Sequence[AnnotatedLine]) -> Iterator[str]:
        if not lines:
            yield (
                f"{self._binary.name} has no debug information for this function: compile with -g "
                "to see its source"
            )
        missing = dict.fromkeys(each.file for each in lines if each.text is None)
        for file in missing:
            yield f"the source file {file} is missing"
        if not self._counts:
            yield "this function did not run"

    # Loops

    def _indirect_targets(self) -> dict[int, list[int]]:
        number = self._binary.number
        return {
            source: [
                target
                for binary, target, kind, _ in edges
                if binary == number and kind == End.INDIRECT_JUMP
            ]
            for source, edges in self._edges.items()
        }

    def _count_loop(self, loop: FoundLoop) -> Loop:
        iterations = self._counts.get(loop.header, 0)
        continued = sum(self._count_of_continuing(each, loop.header) for each in loop.latches)
        entries = iterations - continued
        bounds: tuple[int, int] | tuple[None, None] = None, None
        if loop.header in self._loop_bounds:
            bounds = self._loop_bounds[loop.header]
        elif entries == 1 or 0 < entries == iterations:
            # one entry, or one iteration of each
            bounds = iterations // entries, iterations // entries
        return Loop(
            self._addresses[loop.header],
            tuple(sorted(map(self._addresses.__getitem__, loop.body))),
            loop.depth,
            entries,
            iterations,
            *bounds,
        )

    def _count_of_continuing(self, source: int, target: int) -> int:
        """Return how often the instruction at `source` was followed by the one at `target`."""
        jumps = (End.CONDITIONAL, End.JUMP, End.INDIRECT_JUMP)
        count = sum(
            each[3]
            for each in self._edges.get(source, ())
            if each[:2] == (self._binary.number, target) and each[2] in jumps
        )
        [instruction] = (each for each in self._code if each.offset == source)
        if instruction.end != target:
            return count
        if instruction.kind == InstructionClass.CONDITIONAL:
            return count + self._edge_count(source, End.CUT)
        executed = self._counts.get(source, 0)
        if instruction.kind in (InstructionClass.CALL, InstructionClass.INDIRECT_CALL):
            return count + min(executed, self._count_of_returns(target))
        return count + executed

    def _count_of_returns(self, target: int) -> int:
        edges = self._binary.edges
        is_return = (edges.target == np.uint64(target)) & (edges.kind == End.RETURN)
        is_return &= edges.target_binary == self._binary.number
        return int(edges.count[is_return].sum())


def _line_of(text: Sequence[str], number: int) -> str | None:
    if not text:
        return None
    return text[number - 1] if number <= len(text) else ""
