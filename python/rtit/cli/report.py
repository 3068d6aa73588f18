"""`rtit report FILE`: what ran."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING

from rtit.cli import out
from rtit.cli.bare import add_bare_code, add_raw
from rtit.cli.gaps import EXIT_CODE, UNSURE
from rtit.cli.inputs import add_file, add_images, add_threads, opened
from rtit.cli.selecting import add_streams, count, selection
from rtit.cli.watching import watched

if TYPE_CHECKING:
    from rtit.trace import Trace
    from rtit.views.crash import Crash
    from rtit.views.processes import Node
    from rtit.views.statistics import Statistics, StreamStatistics

_CALLS = 5
_FAULTS = 10
_MOST = 20
_STREAMS = 40
_PROCESSES = 100
"""So many lines at most; --json has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    add_streams(parser)
    add_images(parser)
    add_threads(parser)
    add_bare_code(add_raw(parser))
    parser.add_argument(
        "--top", type=count, default=15, metavar="N", help="how many functions (default 15)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 3 if something could not be decoded."""
    from rtit.views.crash import crashes
    from rtit.views.processes import processes
    from rtit.views.statistics import statistics

    with opened(arguments) as trace:
        streams = trace.select(selection(arguments))
        with watched("report", streams, prints=False):
            found = statistics(trace, streams, None if arguments.json else _MOST)
        faults = crashes(trace, streams)
        roots = processes(trace, found.streams)
        if arguments.json:
            from rtit.views.report_json import report_json

            out.document(report_json(trace, found, roots, faults[:_FAULTS], _CALLS), indent=2)
        else:
            _print_head(trace, roots, faults)
            _print_streams(found.streams)
            _print_functions(found, arguments.top)
            _print_problems(trace, found)
        repeats = any(each.repeats for each in found.streams)
        gaps = found.has_gaps or repeats or trace.image_problems or trace.incomplete
        return EXIT_CODE if gaps else 0


def _print_head(trace: Trace, roots: Sequence[Node], faults: Sequence[Crash]) -> None:
    from rtit.views.processes import lines, size

    command = " ".join(trace.command_line)
    out.line(f"{trace.path}: {command}" if command else trace.path)
    for name, value in trace.facts.items():
        out.line(f"  {name}: {value}")
    count = size(roots)
    if count == 1:
        for ended in trace.endings:
            out.line(f"  {ended}")
    for fault in faults[:_FAULTS]:
        _print_fault(fault)
    _print_rest(len(faults) - _FAULTS, "faults")
    if trace.incomplete:
        out.line(f"  incomplete: {trace.incomplete}")
    if count > 1:
        out.line()
        tree = lines(roots)
        for line in islice(tree, _PROCESSES):
            out.line(line)
        rest = list(tree)
        _print_rest(len(rest) - 1, "lines of processes")
        for line in rest[-1:]:
            out.line(line)


def _print_streams(streams: Sequence[StreamStatistics]) -> None:
    out.line()
    out.line(f"{'instructions':>14} {'branches':>12} {'PT bytes':>12} {'B/1000':>8}  stream")
    largest = sorted(streams, key=lambda each: -each.instructions)[:_STREAMS]
    shown = set(map(id, largest))
    for each in streams:
        if id(each) in shown:
            out.line(
                f"{each.instructions:14,} {each.branches:12,} {each.pt_bytes:12,} "
                f"{each.bytes_per_1000:8.1f}  {each.title}"
            )
            for name, count in each.shares[:_STREAMS]:
                out.line(f"{count:14,} {'':30}    {name}")
            _print_rest(len(each.shares) - _STREAMS, "threads of this CPU")
    _print_rest(len(streams) - _STREAMS, "smaller ones")


def _print_functions(found: Statistics, top: int) -> None:
    if found.functions:
        out.line()
        out.line(f"{'instructions':>14} {'share':>7}  function")
    whole = found.instructions or 1
    for (name, module), number in found.functions.most_common(top):
        place = PurePath(module).name or "unknown"
        out.line(f"{number:14,} {number / whole:7.1%}  {f'{name} ({place})' if name else place}")
    _print_rest(len(found.functions) - top, "functions")
    out.line()


def _print_problems(trace: Trace, found: Statistics) -> None:
    for problem in trace.image_problems:
        out.line(f"image: {problem}")
    for each in found.streams:
        if each.unsure[0]:
            times, count = each.unsure
            out.line(f"ledger: {each.title}: {times:,} times {UNSURE}: {count:,} instructions")
        for text in each.repeats:
            out.line(f"ledger: {each.title}: {text}")
        _print_rest(len(each.repeats) - _MOST, "loops of which nothing tells how often")
        if each.missing:
            out.line(
                f"ledger: {each.title}: {each.missing:,} instructions of further rounds are in the "
                "total and in no function"
            )
    if found.streams and not found.has_gaps:
        whole = sum(each.pt_bytes for each in found.streams)
        out.line(f"ledger: all {whole:,} bytes exact")
        return
    exact = [each for each in found.streams if not each.losses]
    if len(exact) > 1:
        whole = sum(each.pt_bytes for each in exact)
        out.line(f"ledger: all {whole:,} bytes of {len(exact):,} streams exact")
    for each in found.streams:
        if not each.losses and len(exact) > 1:
            continue
        share = each.exact_bytes / each.pt_bytes if each.pt_bytes else 1.0
        part = f"{each.exact_bytes:,} of {each.pt_bytes:,} bytes exact ({share:.1%})"
        out.line(f"ledger: {each.title}: {part}")
        for text in each.losses:
            out.line(f"  {text}")
        if len(each.losses) > _MOST:
            out.line(f"  ... and {len(each.losses) - _MOST} more")


def _print_rest(count: int, what: str) -> None:
    if count > 0:
        out.line(f"{'':22}  ... and {count:,} more {what}")


def _print_fault(fault: Crash) -> None:
    place = f"{fault.symbol} ({fault.source})" if fault.source else fault.symbol
    out.line(f"  fault: thread {fault.tid}: {fault.ending} in {place}: {fault.assembly}")
    for number, (caller, called) in enumerate(fault.calls(_CALLS)):
        out.line(f"    {'' if number else 'last calls:':11} {caller} -> {called}")
