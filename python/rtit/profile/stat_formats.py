"""Counts of `rtit stat` in other formats: Markdown, and results for a GitHub benchmark action."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rtit.profile.stat import PARTS_OF_COUNTS, Stat, StoredBaseline


def markdown_lines(
    found: Stat, baseline: StoredBaseline | None, top: int, verdict: str = ""
) -> Iterator[str]:
    """Iterate over the lines of a table of all counts, for example for a pull request.

    With a baseline, the table has the changes, and further tables have those of `top` tests and
    functions.
    `verdict`: a sentence at the beginning.
    """
    if verdict:
        yield verdict
        yield ""
    if baseline is None:
        yield "| count | number |"
        yield "|---|---:|"
        for name, count in found.counts.items():
            yield f"| {_indented(name)} | {count:,} |"
        if found.tests:
            yield ""
            yield "| test | instructions |"
            yield "|---|---:|"
            for name, count in sorted(found.tests.items()):
                yield f"| {_code(name)} | {count:,} |"
        return
    yield "| count | baseline | now | change |"
    yield "|---|---:|---:|---:|"
    for name, count in found.counts.items():
        before = baseline.counts.get(name)
        old = "" if before is None else f"{before:,}"
        yield f"| {_indented(name)} | {old} | {count:,} | {_change(before, count)} |"
    yield from _change_table("test", baseline.changed_tests(found), top)
    yield from _change_table("function", baseline.changed_functions(found), top)


def _change_table(kind: str, changed: list[tuple[str, int, int]], top: int) -> Iterator[str]:
    if changed:
        yield ""
        yield f"| {kind} | baseline | now | change |"
        yield "|---|---:|---:|---:|"
        for name, old_count, new_count in changed[:top]:
            change = _change(old_count, new_count)
            yield f"| {_code(name)} | {old_count:,} | {new_count:,} | {change} |"
    if len(changed) > top:
        yield ""
        yield f"{len(changed) - top:,} more {kind}s changed."


def _indented(name: str) -> str:
    return f"- {name}" if name in PARTS_OF_COUNTS else name


def _change(before: int | None, now: int) -> str:
    if before is None or before == now:
        return ""
    share = f" ({(now - before) / before:+.2%})" if before else ""
    return f"{now - before:+,}{share}"


def _code(name: str) -> str:
    """Return a name as code in a table cell, whatever characters it has."""
    fence = "`" * (1 + max(map(len, _runs_of_backticks(name)), default=0))
    padding = " " if name.startswith("`") or name.endswith("`") else ""
    text = name.replace("|", "\\|")
    return f"{fence}{padding}{text}{padding}{fence}"


def _runs_of_backticks(text: str) -> list[str]:
    import re

    return re.findall("`+", text)


def github_benchmark(found: Stat, program: str) -> list[dict[str, Any]]:
    """Return what the action github-action-benchmark takes as "customSmallerIsBetter"."""
    return [
        {"name": f"{program}: {name}" if program else name, "unit": _unit(name), "value": count}
        for name, count in found.counts.items()
    ] + [
        {"name": f"{name}: instructions", "unit": "instructions", "value": count}
        for name, count in found.tests.items()
    ]


def _unit(name: str) -> str:
    """Return the unit of a count: "calls of the function" are calls."""
    return name.partition(" of ")[0].split()[-1]
