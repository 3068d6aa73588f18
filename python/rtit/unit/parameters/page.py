"""Write docs/parameters.md: `python -m rtit.unit.parameters.page [--check]`.

Writes docs/reference/parameters.md of the source tree; with `--check` it only compares, and fails
if they differ.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from textwrap import wrap

from rtit.generated_files import write_or_check_generated_file
from rtit.unit.parameters.table import PARAMETER_TABLE, ParameterRow, format_default

TARGET = Path(__file__).resolve().parents[4] / "docs" / "reference" / "parameters.md"

_PAGE_HEAD = """\
# Parameters of the trace unit

The Intel SDM leaves some choices to the processor. Each choice is a parameter of the trace unit.
For each parameter, this page gives the allowed values, the default, the section of the SDM that
leaves the choice open, and the meaning. The command `python -m rtit.unit.parameters.page` generates
this page.

With any allowed value of any parameter, the trace unit writes a legal trace of the same execution.
To set a parameter, use `Parameters(NAME=VALUE)` in Python, or `parameters NAME=VALUE` in a
scenario. [How rtit interprets the Intel SDM](readings.md) gives the reasons for some defaults.
"""


def render_parameters_page() -> str:
    """Return the text of parameters.md."""
    parts = [_PAGE_HEAD]
    for group, rows in groupby(PARAMETER_TABLE, key=lambda row: row.group):
        parts.append(f"\n## {group}\n")
        parts += [_render_parameter(row) for row in rows]
    return "".join(parts)


def _render_parameter(row: ParameterRow) -> str:
    """Return the list item of one parameter."""
    facts = (
        f"`{row.name}`: allowed values: {row.values.words}; "
        f"default: {format_default(row.default)}; SDM section {row.section.replace(', ', ' and ')}."
    )
    return f"\n* {_wrap_list_text(facts)}\n\n  {_wrap_list_text(row.reason)}\n"


def _wrap_list_text(text: str) -> str:
    return "\n  ".join(wrap(text, 112))


def main(arguments: Sequence[str]) -> int:
    """Write or, with `--check`, compare. Returns the exit status: see `generated.write`."""
    return write_or_check_generated_file(
        arguments, TARGET, render_parameters_page(), "rtit.unit.parameters.page"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
