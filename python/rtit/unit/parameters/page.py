"""The parameters as a page: `python -m rtit.unit.parameters.page [--check]`.

Writes docs/parameters.md of the source tree; with `--check` it only compares, and fails if they
differ.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

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
    """Write or, with `--check`, compare.

    Returns the exit status: 0, 1 if the file differs, 2 for bad arguments.
    """
    text = render()
    if list(arguments) == ["--check"]:
        same = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text
        if not same:
            print(
                f"{TARGET} is out of date: run python -m rtit.unit.parameters.page", file=sys.stderr
            )
        return 0 if same else 1
    if arguments:
        print("usage: python -m rtit.unit.parameters.page [--check]", file=sys.stderr)
        return 2
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
