"""What was counted before: a file of JSON beside the tests, to be kept with them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rtit.errors import InputError, UsageError
from rtit.readable import read_json_file

FOLDER = "rtit_baselines"
_SHOWN = 8
_SMALLEST = 1000
"""A function is stored if it has a thousandth of the instructions."""


@dataclass(frozen=True, slots=True)
class Count:
    """Instructions, and those of the functions that have most of them, if they are known."""

    instructions: int
    functions: Mapping[str, int]

    @classmethod
    def of(cls, instructions: int, functions: Mapping[str, int]) -> Count:
        """Without small functions."""
        least = max(1, instructions // _SMALLEST)
        return cls(
            instructions, {name: count for name, count in functions.items() if count >= least}
        )

    def changed(self, now: Count) -> list[str]:
        """A line for each of the functions that changed most."""
        if not self.functions or not now.functions:
            return []
        found = [
            (now.functions.get(name, 0) - self.functions.get(name, 0), name)
            for name in self.functions.keys() | now.functions.keys()
        ]
        found = sorted(each for each in found if each[0])
        found.sort(key=lambda each: -abs(each[0]))
        return [f"{change:+16,}  {name}" for change, name in found[:_SHOWN]]


class Baselines:
    """The counts of one file of tests, by the name of the test and what the test calls each.

    Tests in several processes may use it at once.
    """

    def __init__(self, tests: Path) -> None:
        """Of the tests in this file."""
        self.path = tests.parent / FOLDER / f"{tests.stem}.json"

    def get(self, key: str) -> Count | None:
        """What was stored, None if nothing was. Raises InputError, OSError."""
        return self._read().get(key)

    def put(self, key: str, count: Count) -> None:
        """Store it. Raises InputError, OSError."""
        self.path.parent.mkdir(exist_ok=True)
        with _alone(self.path.parent):
            found = {**self._read(), key: count}
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

    def _read(self) -> dict[str, Count]:
        try:
            value = read_json_file(self.path)
            return {
                str(key): Count(_whole(row["instructions"]), _counts(row["functions"]))
                for key, row in value.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            message = f"no counts as --rtit-update stores them: {error!r}"
            raise InputError(message, source=str(self.path)) from None


def within(text: str) -> float:
    """`0.1%` as a fraction. Raises UsageError."""
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1
    if not text.endswith("%") or not 0 <= share < 1e9:
        raise UsageError(f"within is a percentage as '0.1%', not {text!r}")
    return share


def verdict(before: Count, now: Count, share: float) -> str | None:
    """What is wrong with a count, for people; None if it is as before, or near enough."""
    change = now.instructions - before.instructions
    if abs(change) <= share * before.instructions:
        return None
    part = f" ({change / before.instructions:+.3%})" if before.instructions else ""
    lines = [
        f"{now.instructions:,} instructions, {abs(change):,} {'more' if change > 0 else 'fewer'} "
        f"than the baseline's {before.instructions:,}{part}; {share:.4%} may be",
        *before.changed(now),
    ]
    return "\n".join(lines)


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _counts(value: Mapping[str, object]) -> dict[str, int]:
    return {str(name): _whole(count) for name, count in value.items()}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While no other process is in here."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
