"""The profile format of callgrind (valgrind, "Callgrind Format Specification"), version 1.

Costs are exact instruction counts by address and source line. A call costs the instructions until
it returns. A call of a function that is running costs nothing: readers take the sum over all calls
of a function for its inclusive cost, which so has each instruction once. (valgrind has a function'2
for such calls, whose sum has an instruction once for each level.) A jump to another function counts
as a call. Names are written once and then referred to by number. Code in no file has one position,
address 0, per function.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit.image.inlined_calls import FunctionIndex
from rtit.image.source_lines import source_lines_at
from rtit.profile.calls import CodeLocation
from rtit.profile.tables import NO_BINARY, find_sorted, iterate_rows, taken_branches
from rtit.text_escaping import escape_control_characters
from rtit.trace import End

if TYPE_CHECKING:
    from rtit.profile.builder import Function
    from rtit.profile.calls import CallTable, CallTotals
    from rtit.profile.tables import Binary

_UNKNOWN = "???"
_Position = tuple[int, int]


class _NameTable:
    """Numbers names: `(1) name` the first time, `(1)` afterwards."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def reference_to_name(self, name: str) -> str:
        name = escape_control_characters(name)
        if name in self._numbers:
            return f"({self._numbers[name]})"
        self._numbers[name] = len(self._numbers) + 1
        return f"({len(self._numbers)}) {name}"


class _BinaryCode:
    """Functions, source lines and addresses of a binary's instructions."""

    def __init__(self, binary: Binary) -> None:
        from rtit._core import demangle

        self.binary = binary
        self.files, self.file, self.line = source_lines_at(binary.symbols, binary.offset)
        self.address = binary.symbols.addresses(binary.offset)
        self.owner = FunctionIndex(binary.symbols).find_functions(binary.offset)
        self._offset = binary.offset.data
        self._demangle = demangle

    def row_of_offset(self, offset: int) -> int | None:
        """Return the row of the instruction at an offset; None if it did not run."""
        at = bisect_left(self._offset, offset)
        return at if at < len(self._offset) and self._offset[at] == offset else None

    def function_name_of_row(self, row: int) -> str:
        owner = int(self.owner[row])
        if owner < 0:
            return _UNKNOWN
        # functions of equal name in one binary differ by their file only, as in callgrind
        return self._demangle(self.binary.symbols.name(owner))

    def source_file_of_row(self, row: int) -> str:
        return self.file_name(int(self.file[row]))

    def file_name(self, file: int) -> str:
        """Return the name of a source file by number."""
        return self.files[file] if file >= 0 else _UNKNOWN

    def address_and_line_of_row(self, row: int) -> _Position:
        return int(self.address[row]), int(self.line[row])

    def functions_in_row_order(self) -> tuple[list[tuple[str, str]], Any]:
        """Return names and files of functions, in the order of their first rows, and the function
        of each row.

        A function belongs to the file of its first instruction; lines of other files are inlined.
        """
        _, first, which = np.unique(self.owner, return_index=True, return_inverse=True)
        numbers: dict[tuple[str, str], int] = {}
        number = np.zeros(len(first), np.intp)
        for at in np.argsort(first).tolist():
            row = int(first[at])
            key = self.function_name_of_row(row), self.source_file_of_row(row)
            number[at] = numbers.setdefault(key, len(numbers))
        return list(numbers), number[which]


def callgrind_profile(
    binaries: Sequence[Binary],
    calls: CallTable,
    command: Sequence[str],
    creator: str,
    unmapped_code: Mapping[Function, int],
) -> Iterator[str]:
    """Return the lines of the profile.

    `command` is the recorded command line; `outside` has the instructions in no file, by function.
    """
    total = sum(each.executed_instructions for each in binaries) + sum(unmapped_code.values())
    yield "# callgrind format"
    yield "version: 1"
    yield f"creator: {creator}"
    if command:
        yield f"cmd: {escape_control_characters(' '.join(command))}"
    yield "part: 1"
    yield "positions: instr line"
    yield "events: Ir"
    yield f"summary: {total}"
    codes = {each.number: _BinaryCode(each) for each in binaries}
    names = _NameTable(), _NameTable(), _NameTable()
    for code in codes.values():
        calls_made = _CallsBySource(calls, code.binary.number)
        yield from _binary_lines(
            code, codes, calls_made, names, calls.unmapped_functions if unmapped_code else {}
        )
    if unmapped_code:
        yield from _unmapped_lines(unmapped_code, codes, calls, names)
    yield f"totals: {total}"


def _binary_lines(
    code: _BinaryCode,
    codes: dict[int, _BinaryCode],
    calls_by_source: _CallsBySource,
    names: tuple[_NameTable, _NameTable, _NameTable],
    unmapped_functions: Mapping[CodeLocation, Function],
) -> Iterator[str]:
    objects, files, functions = names
    jumps = _JumpsBySource(code)
    binary = code.binary
    yield ""
    yield f"ob={objects.reference_to_name(binary.path)}"
    function_names, function = code.functions_in_row_order()
    columns = code.address, code.line, binary.count, code.file, binary.offset, jumps.begin, function
    last, file, current_file = -1, "", ""
    for row in iterate_rows(columns, np.argsort(function, kind="stable")):
        address, line, executions, source, offset, jump, number = row
        if number != last:
            last = number
            name, file = function_names[number]
            current_file = file
            yield f"fl={files.reference_to_name(file)}"
            yield f"fn={functions.reference_to_name(name)}"
        if source >= 0 and code.files[source] != current_file:
            current_file = code.files[source]
            key = "fe" if current_file == file else "fi"
            yield f"{key}={files.reference_to_name(current_file)}"
        yield f"{address:#x} {line} {executions}"
        for target, count, conditional in jumps.jumps_at(jump):
            target_address, to_line = code.address_and_line_of_row(target)
            frequency = f"{count}/{executions}" if conditional else str(count)
            yield f"{'jcnd' if conditional else 'jump'}={frequency} {target_address:#x} {to_line}"
            yield f"{address:#x} {line}"
        for call in calls_by_source.calls_at(offset):
            if text := _call_lines(call, codes, names, unmapped_functions, (code, current_file)):
                yield from text
                yield f"{address:#x} {line} {call.inclusive}"


def _call_lines(
    call: CallTotals,
    codes: Mapping[int, _BinaryCode],
    names: tuple[_NameTable, _NameTable, _NameTable],
    unmapped_functions: Mapping[CodeLocation, Function],
    caller: tuple[_BinaryCode | None, str],
) -> list[str]:
    """Return the lines of a call from a source file; none if the callee is not shown."""
    objects, files, functions = names
    location = call.target
    if location in unmapped_functions:
        name, module = unmapped_functions[location]
        text = [
            f"cob={objects.reference_to_name(module or _UNKNOWN)}",
            f"cfi={files.reference_to_name(_UNKNOWN)}",
        ]
        return [
            *text,
            f"cfn={functions.reference_to_name(name or _UNKNOWN)}",
            f"calls={call.calls} 0x0 0",
        ]
    called = codes.get(location.binary)
    if called is None:
        return []
    entry = called.row_of_offset(location.offset)
    if entry is None:
        return []
    code, current_file = caller
    found = []
    if called is not code:
        found.append(f"cob={objects.reference_to_name(called.binary.path)}")
    if called is not code or called.source_file_of_row(entry) != current_file:
        found.append(f"cfi={files.reference_to_name(called.source_file_of_row(entry))}")
    target_address, line = called.address_and_line_of_row(entry)
    return [
        *found,
        f"cfn={functions.reference_to_name(called.function_name_of_row(entry))}",
        f"calls={call.calls} {target_address:#x} {line}",
    ]


def _unmapped_lines(
    unmapped_code: Mapping[Function, int],
    codes: Mapping[int, _BinaryCode],
    calls: CallTable,
    names: tuple[_NameTable, _NameTable, _NameTable],
) -> Iterator[str]:
    objects, files, functions = names
    calls_by_source: dict[Function, list[CallTotals]] = defaultdict(list)
    for offset, called in _CallsBySource(calls, NO_BINARY).all_calls():
        calls_by_source[
            calls.unmapped_functions.get(CodeLocation(NO_BINARY, offset), ("", ""))
        ].extend(called)
    for function, count in sorted(unmapped_code.items()):
        name, module = function
        yield ""
        yield f"ob={objects.reference_to_name(module or _UNKNOWN)}"
        yield f"fl={files.reference_to_name(_UNKNOWN)}"
        yield f"fn={functions.reference_to_name(name or _UNKNOWN)}"
        yield f"0x0 0 {count}"
        for call in calls_by_source.get(function, ()):
            if text := _call_lines(call, codes, names, calls.unmapped_functions, (None, "")):
                yield from text
                yield f"0x0 0 {call.inclusive}"


class _CallsBySource:
    """Calls from a binary, by offset of the call."""

    def __init__(self, calls: CallTable, binary: int) -> None:
        self._calls = calls
        calls_made = np.flatnonzero(np.asarray(calls.source_binary) == binary)
        offset = np.asarray(calls.source)[calls_made]
        order = np.argsort(offset, kind="stable")
        self._number, self._offset = calls_made[order].data, offset[order].data

    def calls_at(self, offset: int) -> Iterator[CallTotals]:
        """Iterate over the calls at an offset."""
        row = bisect_left(self._offset, offset)
        while row < len(self._offset) and self._offset[row] == offset:
            yield self._calls.counts_of_call(self._number[row])
            row += 1

    def all_calls(self) -> Iterator[tuple[int, Iterator[CallTotals]]]:
        """Iterate over offsets and their calls, in the order of the `CallTable`."""
        for offset in dict.fromkeys(self._offset[row] for row in np.argsort(self._number)):
            yield offset, self.calls_at(offset)


class _JumpsBySource:
    """Jumps within functions that were taken.

    `begin` has for each row of the code the index of its first jump, -1 for none.
    """

    def __init__(self, code: _BinaryCode) -> None:
        edges = taken_branches(code.binary.edges_within_binary)
        edges = edges.select_rows(
            np.isin(edges.kind, [End.CONDITIONAL, End.JUMP, End.INDIRECT_JUMP])
        )
        at, to = (find_sorted(code.binary.offset, each) for each in (edges.source, edges.target))
        inside = (at >= 0) & (to >= 0) & (code.owner[at] == code.owner[to])
        self.begin = find_sorted(at[inside], np.arange(len(code.owner)))
        columns = at, to, edges.count, edges.kind
        self._at, self._to, self._count, self._kind = (
            memoryview(column[inside]) for column in columns
        )

    def jumps_at(self, begin: int) -> Iterator[tuple[int, int, bool]]:
        """Iterate over target row, count, and whether the jump is conditional."""
        at = begin
        while 0 <= at < len(self._at) and self._at[at] == self._at[begin]:
            yield self._to[at], self._count[at], self._kind[at] == End.CONDITIONAL
            at += 1
