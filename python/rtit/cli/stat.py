"""`rtit stat FILE`: exact counts of a recording, and how they changed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.cli import out
from rtit.cli.bare import add_bare_code, add_raw
from rtit.cli.gaps import EXIT_CODE
from rtit.cli.inputs import add_file, add_images, opened
from rtit.cli.selecting import add_streams, selection
from rtit.cli.watching import watched
from rtit.errors import InputError, UsageError
from rtit.profile.stat import Baseline, Stat, named, stat

if TYPE_CHECKING:
    from collections import Counter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    parser.add_argument(
        "--per", choices=("function", "dso", "thread"), help="instructions of each, as well"
    )
    parser.add_argument(
        "--top", type=int, default=15, metavar="N", help="so many of them (default 15)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object with all of it")
    parser.add_argument(
        "--baseline", metavar="JSON", help="what --json printed before: show what has changed"
    )
    parser.add_argument(
        "--fail-above",
        metavar="N%",
        type=_share,
        help="exit code 1 if there are more instructions than the baseline has, by more than this",
    )
    parser.epilog = (
        "exit codes: 0 clean, 1 failure (more instructions than --fail-above allows), 2 usage, 3 "
        "decoded with gaps\n"
    )
    add_streams(parser)
    add_images(parser)
    add_bare_code(add_raw(parser))


def run(arguments: argparse.Namespace) -> int:
    """Print the counts."""
    if arguments.fail_above is not None and arguments.baseline is None:
        raise UsageError("--fail-above needs --baseline")
    baseline = _baseline(arguments.baseline) if arguments.baseline is not None else None
    with opened(arguments) as trace:
        streams = selection(arguments).streams(trace.threads)
        with watched("stat", streams, prints=False):
            found = stat(trace, streams)
    if arguments.json:
        out.document(found.as_json(), indent=2)
    else:
        _print(found, arguments.per, arguments.top)
    for line in found.losses.lines():
        out.complain("stat", f"missing: {line}")
    if baseline is not None and _worse(found, baseline, arguments):
        return 1
    return EXIT_CODE if found.losses.has_gaps else 0


def _print(found: Stat, per: str | None, top: int) -> None:
    for name, count in found.counts.items():
        out.line(f"{count:18,}  {name}")
    tables: dict[str, Counter[str]] = {"dso": found.files, "thread": found.threads}
    if per is None:
        return
    out.line()
    rows: Iterable[tuple[str, int]]
    if per == "function":
        rows = [(named(each), count) for each, count in found.functions.most_common()]
    else:
        rows = [(name or "in no file", count) for name, count in tables[per].most_common()]
    rows = list(rows)
    whole = found.counts["instructions"] or 1
    for name, count in rows[:top]:
        out.line(f"{count:18,} {count / whole:7.1%}  {name}")
    if len(rows) > top:
        out.line(f"{'':26}  ... and {len(rows) - top:,} more")


def _worse(found: Stat, baseline: Baseline, arguments: argparse.Namespace) -> bool:
    """Whether there are more instructions than may be; says what changed."""
    before, now = baseline.counts["instructions"], found.counts["instructions"]
    share = (now - before) / before if before else float(now > 0)
    limit = arguments.fail_above
    worse = limit is not None and share > limit
    if not arguments.json:
        out.line()
        verdict = f": more than {limit:.4%} above" if worse else ""
        out.line(f"{now - before:+18,}  instructions since the baseline ({share:+.4%}){verdict}")
        changed = baseline.changed(found)
        for name, old, new in changed[: arguments.top]:
            out.line(f"{new - old:+18,}  {name}: {old:,}, now {new:,}")
        if len(changed) > arguments.top:
            out.line(f"{'':18}  ... and {len(changed) - arguments.top:,} more")
    return worse


def _baseline(path: str) -> Baseline:
    try:
        value = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"no JSON: {error}", source=path) from None
    return Baseline.of(value, path)


def _share(text: str) -> float:
    number = text.removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage") from None
    if not 0 <= share < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage from 0 on")
    return share
