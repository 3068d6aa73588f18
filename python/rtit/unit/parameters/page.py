"""The parameters as a page: `python -m rtit.unit.parameters.page [--check]`.

Writes docs/parameters.md of the source tree; with `--check` it only compares, and fails if they
differ.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rtit.generated import write
from rtit.unit.parameters.table import TABLE
from rtit.unit.parameters.values import Row, shown

TARGET = Path(__file__).resolve().parents[4] / "docs" / "parameters.md"

_HEAD = """\
# What the chapter leaves open

The parameters of the trace unit. Generated: `python -m rtit.unit.parameters.page`.

Every value gives a legal trace of the same execution: `Parameters(NAME=VALUE)` in Python,
`parameters NAME=VALUE` in a scenario. Why a default is what it is, where that is not plain from the
text: [decision 12](decisions/0012-readings-of-the-trace-unit.md).
"""
_COLUMNS = ("parameter", "values", "default", "section", "what it decides")


def render() -> str:
    """The text of parameters.md."""
    parts = [_HEAD]
    for group, rows in groupby(TABLE, key=lambda row: row.group):
        parts.append(f"\n## {group}\n\n")
        parts.append(_line(_COLUMNS) + _line(["---"] * len(_COLUMNS)))
        parts += [_line(_cells(row)) for row in rows]
    return "".join(parts)


def _cells(row: Row) -> tuple[str, ...]:
    return f"`{row.name}`", row.values.words, shown(row.default), row.section, row.reason


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def main(arguments: Sequence[str]) -> int:
    """Write or, with `--check`, compare. Returns the exit status: see `generated.write`."""
    return write(arguments, TARGET, render(), "rtit.unit.parameters.page")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
