"""Exact counts as text, and what has changed since a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rtit.errors import InputError
from rtit.profile.stat import Baseline, Stat, function_label
from rtit.readable import escape_control_characters, format_json, read_json_file


def lines(found: Stat, per: str | None, top: int) -> Iterator[str]:
    """The counts, and the `top` functions, files or threads, as `per` says."""
    for name, count in found.counts.items():
        yield f"{count:18,}  {name}"
    if per is None:
        return
    yield ""
    tables: dict[str, Counter[str]] = {"dso": found.files, "thread": found.threads}
    rows: Iterable[tuple[str, int]]
    if per == "function":
        rows = [(function_label(each), count) for each, count in found.functions.most_common()]
    else:
        rows = [(name or "in no file", count) for name, count in tables[per].most_common()]
    rows = list(rows)
    whole = found.counts["instructions"] or 1
    for name, count in rows[:top]:
        yield f"{count:18,} {count / whole:7.1%}  {name}"
    if len(rows) > top:
        yield f"{'':26}  ... and {len(rows) - top:,} more"


def document(value: object) -> Iterator[str]:
    """The lines of an indented JSON value."""
    yield from format_json(value, indent=2).split("\n")


def as_bytes(lines: Iterable[str]) -> Iterator[bytes]:
    """Return lines as the bytes of a file, with control characters escaped."""
    for line in lines:
        yield f"{escape_control_characters(line)}\n".encode()


def unnamed(found: Stat, per: str | None) -> Iterator[str]:
    """A sentence for each file of which no function is known, if functions are wanted."""
    named_files = {file for name, file in found.functions if name}
    for file in found.files if per == "function" else ():
        if file and file not in named_files:
            yield f"{file} has no symbols: its functions are not known"


def share(found: Stat, baseline: Baseline) -> float:
    """How many more instructions than before, as a share of those."""
    before, now = baseline.counts["instructions"], found.counts["instructions"]
    return (now - before) / before if before else float(now > 0)


def changes(found: Stat, baseline: Baseline, limit: float | None, top: int) -> Iterator[str]:
    """What changed: instructions, and the `top` functions."""
    more = found.counts["instructions"] - baseline.counts["instructions"]
    part = share(found, baseline)
    verdict = f": more than {limit:.4%} above" if limit is not None and part > limit else ""
    yield f"{more:+18,}  instructions since the baseline ({part:+.4%}){verdict}"
    changed = baseline.changed_functions(found)
    for name, old, new in changed[:top]:
        yield f"{new - old:+18,}  {name}: {old:,}, now {new:,}"
    if len(changed) > top:
        yield f"{'':18}  ... and {len(changed) - top:,} more"


def read_baseline(path: str) -> Baseline:
    """What --json wrote before. Raises InputError, OSError."""
    try:
        value = read_json_file(path)
    except ValueError as error:
        raise InputError(f"not JSON: {error}", source=path) from None
    return Baseline.from_json(value, path)
