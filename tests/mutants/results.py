"""What became of each mutation, as a file of lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results.txt"


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
    RESULTS.write_text(
        "# Who noticed, digest of the file, by what, mutation. Made by whole.py.\n" + "".join(lines)
    )
