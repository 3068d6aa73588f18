"""The profile format of callgrind (valgrind, "Callgrind Format Specification"), version 1.

Costs are instructions, by instruction address and line of source, exact. Calls have the
instructions that ran until they returned; where a function called itself meanwhile they count once.
A jump to another function stands as a call. Names are given once and then by number. Code that is
in no file has one position, address 0, for each of its functions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit.profile.calls import Place
from rtit.profile.source_lines import Owners, lines_of
from rtit.profile.tables import NOWHERE, places, taken, values
from rtit.readable import readable
from rtit.trace import End

if TYPE_CHECKING:
    from rtit.profile.builder import Function
    from rtit.profile.calls import Call, Calls
    from rtit.profile.tables import Binary


_UNKNOWN = "???"
_Position = tuple[int, int]


class _Names:
    """`(1) name` the first time, `(1)` from then on."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, name: str) -> str:
        name = readable(name)
        if name in self._numbers:
            return f"({self._numbers[name]})"
        self._numbers[name] = len(self._numbers) + 1
        return f"({len(self._numbers)}) {name}"


class _Code:
    """What the instructions of a binary belong to."""

    def __init__(self, binary: Binary) -> None:
        from rtit._core import demangle

        self.binary = binary
        self.files, self.file, self.line = lines_of(binary.symbols, binary.offset)
        self.address = binary.symbols.addresses(binary.offset)
        self.owner = Owners(binary.symbols).of(binary.offset)
        self._offset = binary.offset.data
        self._demangle = demangle

    def row(self, offset: int) -> int | None:
        """That of the instruction at an offset, None if it did not run."""
        at = bisect_left(self._offset, offset)
        return at if at < len(self._offset) and self._offset[at] == offset else None

    def function(self, row: int) -> str:
        owner = int(self.owner[row])
        if owner < 0:
            return _UNKNOWN
        # Functions of one name in one binary are told apart by their file alone, as in callgrind.
        return self._demangle(self.binary.symbols.name(owner))

    def source(self, row: int) -> str:
        return self.named(int(self.file[row]))

    def named(self, file: int) -> str:
        """That of a file by its number."""
        return self.files[file] if file >= 0 else _UNKNOWN

    def position(self, row: int) -> _Position:
        return int(self.address[row]), int(self.line[row])

    def functions(self) -> tuple[list[tuple[str, str]], Any]:
        """Names and files of functions, in the order of their first rows, and to which each row
        belongs. A function stands in the file of its first instruction; lines of others are
        inlined.
        """
        _, first, which = np.unique(self.owner, return_index=True, return_inverse=True)
        numbers: dict[tuple[str, str], int] = {}
        number = np.zeros(len(first), np.intp)
        for at in np.argsort(first).tolist():
            row = int(first[at])
            key = self.function(row), self.source(row)
            number[at] = numbers.setdefault(key, len(numbers))
        return list(numbers), number[which]


def callgrind(
    binaries: Sequence[Binary],
    calls: Calls,
    command: Sequence[str],
    creator: str,
    outside: Mapping[Function, int],
) -> Iterator[str]:
    """The lines of the whole profile; `command` is what was recorded, `outside` has what ran in no
    file, by function.
    """
    whole = sum(each.instructions for each in binaries) + sum(outside.values())
    yield "# callgrind format"
    yield "version: 1"
    yield f"creator: {creator}"
    if command:
        yield f"cmd: {readable(' '.join(command))}"
    yield "part: 1"
    yield "positions: instr line"
    yield "events: Ir"
    yield f"summary: {whole}"
    codes = {each.number: _Code(each) for each in binaries}
    names = _Names(), _Names(), _Names()
    for code in codes.values():
        own = _Made(calls, code.binary.number)
        yield from _object(code, codes, own, names, calls.outside if outside else {})
    if outside:
        yield from _others(outside, codes, calls, names)
    yield f"totals: {whole}"


def _object(
    code: _Code,
    codes: dict[int, _Code],
    made: _Made,
    names: tuple[_Names, _Names, _Names],
    outside: Mapping[Place, Function],
) -> Iterator[str]:
    objects, files, functions = names
    jumps = _Jumps(code)
    binary = code.binary
    yield ""
    yield f"ob={objects.of(binary.path)}"
    named, function = code.functions()
    columns = code.address, code.line, binary.count, code.file, binary.offset, jumps.begin, function
    last, file, here = -1, "", ""
    for row in values(columns, np.argsort(function, kind="stable")):
        address, line, counted, source, offset, jump, number = row
        if number != last:
            last = number
            name, file = named[number]
            here = file
            yield f"fl={files.of(file)}"
            yield f"fn={functions.of(name)}"
        if source >= 0 and code.files[source] != here:
            here = code.files[source]
            yield f"{'fe' if here == file else 'fi'}={files.of(here)}"
        yield f"{address:#x} {line} {counted}"
        for target, count, conditional in jumps.of(jump):
            to, to_line = code.position(target)
            many = f"{count}/{counted}" if conditional else str(count)
            yield f"{'jcnd' if conditional else 'jump'}={many} {to:#x} {to_line}"
            yield f"{address:#x} {line}"
        for call in made.at(offset):
            if text := _called(call, codes, names, outside, (code, here)):
                yield from text
                yield f"{address:#x} {line} {call.inclusive}"


def _called(
    call: Call,
    codes: Mapping[int, _Code],
    names: tuple[_Names, _Names, _Names],
    outside: Mapping[Place, Function],
    now: tuple[_Code | None, str],
) -> list[str]:
    """What is called, from a binary and a file of source; nothing for what is not shown."""
    objects, files, functions = names
    place = call.target
    if place in outside:
        name, module = outside[place]
        text = [f"cob={objects.of(module or _UNKNOWN)}", f"cfi={files.of(_UNKNOWN)}"]
        return [*text, f"cfn={functions.of(name or _UNKNOWN)}", f"calls={call.calls} 0x0 0"]
    called = codes.get(place.binary)
    if called is None:
        return []
    entry = called.row(place.offset)
    if entry is None:
        return []
    code, here = now
    found = []
    if called is not code:
        found.append(f"cob={objects.of(called.binary.path)}")
    if called is not code or called.source(entry) != here:
        found.append(f"cfi={files.of(called.source(entry))}")
    to, line = called.position(entry)
    return [
        *found,
        f"cfn={functions.of(called.function(entry))}",
        f"calls={call.calls} {to:#x} {line}",
    ]


def _others(
    outside: Mapping[Function, int],
    codes: Mapping[int, _Code],
    calls: Calls,
    names: tuple[_Names, _Names, _Names],
) -> Iterator[str]:
    objects, files, functions = names
    made: dict[Function, list[Call]] = defaultdict(list)
    for offset, called in _Made(calls, NOWHERE).all():
        made[calls.outside.get(Place(NOWHERE, offset), ("", ""))].extend(called)
    for function, count in sorted(outside.items()):
        name, module = function
        yield ""
        yield f"ob={objects.of(module or _UNKNOWN)}"
        yield f"fl={files.of(_UNKNOWN)}"
        yield f"fn={functions.of(name or _UNKNOWN)}"
        yield f"0x0 0 {count}"
        for call in made.get(function, ()):
            if text := _called(call, codes, names, calls.outside, (None, "")):
                yield from text
                yield f"0x0 0 {call.inclusive}"


class _Made:
    """The calls that are made in a binary, by where."""

    def __init__(self, calls: Calls, binary: int) -> None:
        self._calls = calls
        own = np.flatnonzero(np.asarray(calls.source_in) == binary)
        offset = np.asarray(calls.source)[own]
        order = np.argsort(offset, kind="stable")
        self._number, self._offset = own[order].data, offset[order].data

    def at(self, offset: int) -> Iterator[Call]:
        """Those of one place."""
        row = bisect_left(self._offset, offset)
        while row < len(self._offset) and self._offset[row] == offset:
            yield self._calls.call(self._number[row])
            row += 1

    def all(self) -> Iterator[tuple[int, Iterator[Call]]]:
        """Those of each place, in the order in which these were first told of."""
        for offset in dict.fromkeys(self._offset[row] for row in np.argsort(self._number)):
            yield offset, self.at(offset)


class _Jumps:
    """Jumps within functions that were taken. `begin`: of each row of the code the place of its
    jumps, -1 if it has none.
    """

    def __init__(self, code: _Code) -> None:
        edges = taken(code.binary.within)
        edges = edges.where(np.isin(edges.kind, [End.CONDITIONAL, End.JUMP, End.INDIRECT_JUMP]))
        at, to = (places(code.binary.offset, each) for each in (edges.source, edges.target))
        inside = (at >= 0) & (to >= 0) & (code.owner[at] == code.owner[to])
        self.begin = places(at[inside], np.arange(len(code.owner)))
        columns = at, to, edges.count, edges.kind
        self._at, self._to, self._count, self._kind = (
            memoryview(column[inside]) for column in columns
        )

    def of(self, begin: int) -> Iterator[tuple[int, int, bool]]:
        """Rows of where to, counts, whether conditional."""
        at = begin
        while 0 <= at < len(self._at) and self._at[at] == self._at[begin]:
            yield self._to[at], self._count[at], self._kind[at] == End.CONDITIONAL
            at += 1
