"""The result of each mutation, as a file of lines, and the explanations of those that no
requirement's test notices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "build" / "mutants" / "results.txt"
"""A run of run_all.py continues from this file."""
EQUIVALENT = HERE / "equivalent.txt"
"""Mutations that change nothing that the model promises, each with the reason."""
RUST = "crates/"
"""Prefix of the names of mutations of Rust code."""
NO_ROW = HERE / "no_row.txt"
"""Mutations that no requirement covers, each with the reason; `*` matches any text."""


@dataclass(frozen=True)
class Result:
    """The result of a mutation.

    `noticed_by` is "row" (a test of a requirement; `detail` is its id), "test" (another test),
    "no test", "loading" (no test, but the code also runs while tests load), or "no rule" (no
    test of a requirement runs the line). `digest` is that of the mutated file.
    """

    name: str
    noticed_by: str
    digest: str
    detail: str


def load_results() -> dict[str, Result]:
    """Return the results by name; none if there is no file."""
    if not RESULTS.exists():
        return {}
    found = {}
    for line in RESULTS.read_text().splitlines():
        if line and not line.startswith("#"):
            noticed_by, digest, detail, name = line.split("\t")
            found[name] = Result(name, noticed_by, digest, detail)
    return found


def save_results(results: dict[str, Result]) -> None:
    """Write the results in the order of their names."""
    lines = [
        f"{each.noticed_by}\t{each.digest}\t{each.detail}\t{each.name}\n"
        for each in sorted(results.values(), key=lambda each: each.name)
    ]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(
        "# Noticed by, digest of the file, detail, mutation. By run_all.py.\n" + "".join(lines)
    )


def known_equivalents() -> set[str]:
    """Return the names in equivalent.txt."""
    return set(_entries(EQUIVALENT))


def no_row_patterns() -> list[str]:
    """Return the patterns in no_row.txt."""
    return _entries(NO_ROW)


def unexplained_results(results: Iterable[Result]) -> list[str]:
    """Return the remaining problems, as text.

    A mutation needs an explanation if only a test without requirement, or no test, notices it.
    An explanation that no mutation needs is a problem, too.
    """
    patterns = {text: _pattern(text) for text in no_row_patterns()}
    equivalent = known_equivalents()
    used: set[str] = set()
    names: set[str] = set()
    problems = []
    for each in results:
        names.add(each.name)
        if each.noticed_by == "test":
            fits = {text for text, pattern in patterns.items() if pattern.fullmatch(each.name)}
        elif each.noticed_by in ("no test", "loading"):
            fits = equivalent & {each.name}
        else:
            continue
        used |= fits
        if not fits:
            problems.append(f"{each.noticed_by}: {each.name}")
    unused = (patterns.keys() | equivalent & names) - used
    return problems + [f"explains nothing: {text}" for text in sorted(unused)]


def count_by_noticer(results: Iterable[Result]) -> Counter[str]:
    """Return the number of mutations by `noticed_by`."""
    return Counter(each.noticed_by for each in results)


def _entries(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.S)
