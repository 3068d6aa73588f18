"""Writes source files that are generated from a table, or checks that they are up to date."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def write_or_check_generated_file(
    arguments: Sequence[str], target: Path, text: str, module: str
) -> int:
    """Write `text` to `target`; with the argument --check, only compare. Serves `python -m module`.

    Returns the exit status: 0, 1 if the file differs, 2 for invalid arguments.
    """
    if list(arguments) == ["--check"]:
        same = target.is_file() and target.read_text(encoding="utf-8") == text
        if not same:
            print(f"{target} is out of date: run python -m {module}", file=sys.stderr)
        return 0 if same else 1
    if arguments:
        print(f"usage: python -m {module} [--check]", file=sys.stderr)
        return 2
    target.write_text(text, encoding="utf-8")
    return 0
