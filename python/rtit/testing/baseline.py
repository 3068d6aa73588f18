"""Baselines of instruction counts: a JSON file beside the tests, to be committed with them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rtit.errors import InputError, UsageError
from rtit.text_escaping import read_json_file

FOLDER = "rtit_baselines"
_MAX_FUNCTIONS = 8
_MIN_SHARE = 1000
"""A function is stored if it has at least one in so many of the instructions."""


@dataclass(frozen=True, slots=True)
class StoredCount:
    """Instructions, and those of the functions with most of them, if known."""

    instructions: int
    functions: Mapping[str, int]

    @classmethod
    def without_small_functions(
        cls, instructions: int, functions: Mapping[str, int]
    ) -> StoredCount:
        """Return a count with the functions that have at least a thousandth of the instructions."""
        smallest = max(1, instructions // _MIN_SHARE)
        return cls(
            instructions, {name: count for name, count in functions.items() if count >= smallest}
        )

    def changed_functions(self, current: StoredCount) -> list[str]:
        """Return a line for each of the functions that changed most."""
        if not self.functions or not current.functions:
            return []
        found = [
            (current.functions.get(name, 0) - self.functions.get(name, 0), name)
            for name in self.functions.keys() | current.functions.keys()
        ]
        found = sorted(each for each in found if each[0])
        found.sort(key=lambda each: -abs(each[0]))
        return [f"{change:+16,}  {name}" for change, name in found[:_MAX_FUNCTIONS]]


class Baselines:
    """Counts of one test file, by test and name of the count.

    Tests in several processes may use the file at the same time.
    """

    def __init__(self, tests: Path) -> None:
        """Use the baselines of the tests in this file."""
        self.path = tests.parent / FOLDER / f"{tests.stem}.json"

    def get(self, key: str) -> StoredCount | None:
        """Return a stored count; None if there is none. Raises InputError, OSError."""
        return self._read_stored_counts().get(key)

    def store(self, key: str, count: StoredCount) -> None:
        """Store a count. Raises InputError, OSError."""
        self.path.parent.mkdir(exist_ok=True)
        with _lock_folder(self.path.parent):
            found = {**self._read_stored_counts(), key: count}
            rows = {
                name: {
                    "instructions": each.instructions,
                    "functions": dict(sorted(each.functions.items())),
                }
                for name, each in sorted(found.items())
            }
            new = self.path.with_suffix(f".{os.getpid()}")
            try:
                new.write_text(json.dumps(rows, indent=2) + "\n")
                new.replace(self.path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise

    def _read_stored_counts(self) -> dict[str, StoredCount]:
        try:
            value = read_json_file(self.path)
            return {
                str(key): StoredCount(
                    _parse_count(row["instructions"]),
                    {str(name): _parse_count(n) for name, n in row["functions"].items()},
                )
                for key, row in value.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            message = f"no counts as --rtit-update stores them: {error!r}"
            raise InputError(message, source=str(self.path)) from None


def parse_tolerance(text: str) -> float:
    """Return `0.1%` as a fraction. Raises UsageError."""
    try:
        tolerance = float(text.removesuffix("%")) / 100
    except ValueError:
        tolerance = -1
    if not text.endswith("%") or not 0 <= tolerance < 1e9:
        raise UsageError(f"within is a percentage as '0.1%', not {text!r}")
    return tolerance


def compare_counts(before: StoredCount, current: StoredCount, tolerance: float) -> str | None:
    """Return how a count differs from its baseline; None if it is within the tolerance."""
    change = current.instructions - before.instructions
    if abs(change) <= tolerance * before.instructions:
        return None
    percentage = f" ({change / before.instructions:+.3%})" if before.instructions else ""
    lines = [
        f"{current.instructions:,} instructions, "
        f"{abs(change):,} {'more' if change > 0 else 'fewer'} than the baseline's "
        f"{before.instructions:,}{percentage}; {tolerance:.4%} is allowed",
        *before.changed_functions(current),
    ]
    return "\n".join(lines)


def _parse_count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
