"""What became of each mutation, as a file of lines, and what explains those that no requirement's
test notices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "build" / "mutants" / "results.txt"
"""A run of whole.py goes on from this file."""
EQUIVALENT = HERE / "equivalent.txt"
"""Mutations that change nothing that the model promises, each with the reason."""
RUST = "crates/"
"""How the names of those in Rust begin."""
NO_ROW = HERE / "no_row.txt"
"""Those of lines for which no requirement asks, each with the reason; `*` is any text."""


@dataclass(frozen=True)
class Result:
    """A mutation by name, `who` noticed it first, and by what.

    `who` is "row" (a requirement's test; `by` is the row), "test" (another test), "nobody",
    "loading" (nobody, but the code also runs while the tests load), or "no rule": no requirement's
    test runs the line. `digest` is that of the mutated file.
    """

    name: str
    who: str
    digest: str
    by: str


def load() -> dict[str, Result]:
    """The results by name; none if there is no file."""
    if not RESULTS.exists():
        return {}
    found = {}
    for line in RESULTS.read_text().splitlines():
        if line and not line.startswith("#"):
            who, digest, by, name = line.split("\t")
            found[name] = Result(name, who, digest, by)
    return found


def save(results: dict[str, Result]) -> None:
    """In order of the names."""
    lines = [
        f"{each.who}\t{each.digest}\t{each.by}\t{each.name}\n"
        for each in sorted(results.values(), key=lambda each: each.name)
    ]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(
        "# Who noticed, digest of the file, by what, mutation. Made by whole.py.\n" + "".join(lines)
    )


def known_equivalents() -> set[str]:
    """The names in equivalent.txt."""
    return set(_entries(EQUIVALENT))


def without_row() -> list[str]:
    """The patterns in no_row.txt."""
    return _entries(NO_ROW)


def unexplained(results: Iterable[Result]) -> list[str]:
    """What is left to do, in words: none if each mutation is noticed by a requirement's test, is
    noticed by another while no requirement asks, or is equivalent; and each explanation is needed,
    as far as its mutation was made.
    """
    patterns = {text: _pattern(text) for text in without_row()}
    equivalent = known_equivalents()
    used: set[str] = set()
    made: set[str] = set()
    left = []
    for each in results:
        made.add(each.name)
        if each.who == "test":
            fits = {text for text, pattern in patterns.items() if pattern.fullmatch(each.name)}
        elif each.who in ("nobody", "loading"):
            fits = equivalent & {each.name}
        else:
            continue
        used |= fits
        if not fits:
            left.append(f"{each.who}: {each.name}")
    unused = (patterns.keys() | equivalent & made) - used
    return left + [f"explains nothing: {text}" for text in sorted(unused)]


def score(results: Iterable[Result]) -> Counter[str]:
    """How many mutations by who noticed."""
    return Counter(each.who for each in results)


def _entries(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.S)
