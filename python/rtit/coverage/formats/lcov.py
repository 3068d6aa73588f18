"""lcov's tracefile (geninfo(1), "FILES"), for genhtml and whatever reads it.

A conditional branch instruction is a block of two branches: 0 was taken, 1 was not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rtit.readable import readable

if TYPE_CHECKING:
    from rtit.coverage.lines import Source


def lcov(sources: Sequence[Source]) -> Iterator[str]:
    """The lines of the file."""
    for source in sources:
        yield "TN:"
        yield f"SF:{readable(source.path)}"
        names: dict[str, tuple[int, int]] = {}
        for function in source.functions:
            line, count = names.get(function.name, (function.line, 0))
            names[function.name] = line, count + function.count
        for name, (line, _) in names.items():
            yield f"FN:{line},{readable(name)}"
        for name, (_, count) in names.items():
            yield f"FNDA:{count},{readable(name)}"
        yield f"FNF:{len(names)}"
        yield f"FNH:{sum(count > 0 for _, count in names.values())}"
        last = block = 0
        for branch in source.each_branch():
            block = block + 1 if branch.line == last else 0
            last = branch.line
            for number, count in enumerate((branch.taken, branch.passed)):
                yield f"BRDA:{branch.line},{block},{number},{count if branch.ran else '-'}"
        yield f"BRF:{source.ways_found}"
        yield f"BRH:{source.ways}"
        for line, count in source.each_line():
            yield f"DA:{line},{count}"
        yield f"LF:{source.lines_found}"
        yield f"LH:{source.covered}"
        yield "end_of_record"
