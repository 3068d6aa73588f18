"""The profile format of callgrind (valgrind, "Callgrind Format Specification"), version 1.

Costs are instructions, by instruction address and line of source, exact. Calls have the
instructions that ran until they returned; where a function called itself meanwhile they count once.
A jump to another function stands as a call. Names are given once and then by number. Code that is
in no file has one position, address 0, for each of its functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rtit.profile.addresses import taken
from rtit.profile.calls import Place
from rtit.profile.lines import Owners, SourceLines
from rtit.profile.table import NOWHERE
from rtit.readable import readable
from rtit.trace import End

if TYPE_CHECKING:
    from rtit.profile.calls import Call, Calls
    from rtit.profile.outside import Function
    from rtit.profile.table import Binary

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
        self._lines = SourceLines(binary.symbols)
        found = self._lines.of(binary.offset)
        self.offsets = binary.offset.tolist()
        self.addresses = binary.symbols.addresses(binary.offset).tolist()
        self.owner = Owners(binary.symbols).of(binary.offset).tolist()
        self.file = found.file.tolist()
        self.line = found.line.tolist()
        self.row = {offset: row for row, offset in enumerate(self.offsets)}
        self._demangle = demangle

    def function(self, row: int) -> str:
        owner = self.owner[row]
        if owner < 0:
            return _UNKNOWN
        # Functions of one name in one binary are told apart by their file alone, as in callgrind.
        return self._demangle(self.binary.symbols.name(owner))

    def source(self, row: int) -> str:
        number = self.file[row]
        return self._lines.files[number] if number >= 0 else _UNKNOWN

    def position(self, row: int) -> _Position:
        return self.addresses[row], self.line[row]


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
    made: dict[int, dict[int, list[tuple[Place, Call]]]] = defaultdict(lambda: defaultdict(list))
    for (source, target), call in calls.by_ends.items():
        made[source.binary][source.offset].append((target, call))
    names = _Names(), _Names(), _Names()
    for code in codes.values():
        own = made[code.binary.number]
        yield from _object(code, codes, own, names, calls.outside if outside else {})
    if outside:
        elsewhere: dict[Function, list[tuple[Place, Call]]] = defaultdict(list)
        for offset, called in made[NOWHERE].items():
            elsewhere[calls.outside.get(Place(NOWHERE, offset), ("", ""))].extend(called)
        yield from _others(outside, codes, elsewhere, names, calls.outside)
    yield f"totals: {whole}"


def _object(
    code: _Code,
    codes: dict[int, _Code],
    made: dict[int, list[tuple[Place, Call]]],
    names: tuple[_Names, _Names, _Names],
    outside: Mapping[Place, Function],
) -> Iterator[str]:
    objects, files, functions = names
    counts = code.binary.count.tolist()
    jumps = _jumps(code)
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    file_of: dict[int, str] = {}
    for row in range(len(counts)):
        # A function stands in the file of its first instruction; lines of others are inlined.
        first = file_of.setdefault(code.owner[row], code.source(row))
        rows[code.function(row), first].append(row)
    yield ""
    yield f"ob={objects.of(code.binary.path)}"
    for (function, file), own in rows.items():
        yield f"fl={files.of(file)}"
        yield f"fn={functions.of(function)}"
        here = file
        for row in own:
            if code.file[row] >= 0 and code.source(row) != here:
                here = code.source(row)
                yield f"{'fe' if here == file else 'fi'}={files.of(here)}"
            address, line = code.position(row)
            yield f"{address:#x} {line} {counts[row]}"
            for target, count, conditional in jumps.get(row, ()):
                to, to_line = code.position(target)
                many = f"{count}/{counts[row]}" if conditional else str(count)
                yield f"{'jcnd' if conditional else 'jump'}={many} {to:#x} {to_line}"
                yield f"{address:#x} {line}"
            for place, call in made.get(code.offsets[row], ()):
                if text := _called(place, call, codes, names, outside, (code, here)):
                    yield from text
                    yield f"{address:#x} {line} {call.inclusive}"


def _called(
    place: Place,
    call: Call,
    codes: Mapping[int, _Code],
    names: tuple[_Names, _Names, _Names],
    outside: Mapping[Place, Function],
    now: tuple[_Code | None, str],
) -> list[str]:
    """What is called, from a binary and a file of source; nothing for what is not shown."""
    objects, files, functions = names
    if place in outside:
        name, module = outside[place]
        text = [f"cob={objects.of(module or _UNKNOWN)}", f"cfi={files.of(_UNKNOWN)}"]
        return [*text, f"cfn={functions.of(name or _UNKNOWN)}", f"calls={call.count} 0x0 0"]
    called = codes.get(place.binary)
    entry = called.row.get(place.offset) if called is not None else None
    if called is None or entry is None:
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
        f"calls={call.count} {to:#x} {line}",
    ]


def _others(
    outside: Mapping[Function, int],
    codes: Mapping[int, _Code],
    made: Mapping[Function, list[tuple[Place, Call]]],
    names: tuple[_Names, _Names, _Names],
    named: Mapping[Place, Function],
) -> Iterator[str]:
    objects, files, functions = names
    for function, count in sorted(outside.items()):
        name, module = function
        yield ""
        yield f"ob={objects.of(module or _UNKNOWN)}"
        yield f"fl={files.of(_UNKNOWN)}"
        yield f"fn={functions.of(name or _UNKNOWN)}"
        yield f"0x0 0 {count}"
        for place, call in made.get(function, ()):
            if text := _called(place, call, codes, names, named, (None, "")):
                yield from text
                yield f"0x0 0 {call.inclusive}"


def _jumps(code: _Code) -> dict[int, list[tuple[int, int, bool]]]:
    """Jumps within functions that were taken: rows of where to, counts, whether conditional."""
    edges = taken(code.binary.within)
    found: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    for source, target, kind, count in zip(
        edges.source.tolist(),
        edges.target.tolist(),
        edges.kind.tolist(),
        edges.count.tolist(),
        strict=True,
    ):
        if kind not in (End.CONDITIONAL, End.JUMP, End.INDIRECT_JUMP):
            continue
        at, to = code.row.get(source), code.row.get(target)
        if at is not None and to is not None and code.owner[at] == code.owner[to]:
            found[at].append((to, count, kind == End.CONDITIONAL))
    return found
