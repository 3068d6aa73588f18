"""`rtit report FILE`: what ran."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import PurePath

from rtit.cli.bare import add_bare_code, add_raw
from rtit.cli.inputs import add_file, add_images, opened
from rtit.cli.selecting import add_streams, selection
from rtit.cli.watching import watched
from rtit.trace import Trace
from rtit.views.crash import Crash, crashes
from rtit.views.processes import Node, lines, processes, size
from rtit.views.report_json import report_json
from rtit.views.statistics import Statistics, StreamStatistics, statistics

_CALLS = 5
_FAULTS = 10
_STREAMS = 40
_PROCESSES = 100
"""So many lines at most; --json has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    add_streams(parser)
    add_images(parser)
    add_bare_code(add_raw(parser))
    parser.add_argument(
        "--top", type=int, default=15, metavar="N", help="how many functions (default 15)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 3 if something could not be decoded."""
    with opened(arguments) as trace:
        streams = selection(arguments).streams(trace.streams)
        with watched("report", streams, prints=False):
            found = statistics(trace, streams)
        faults = crashes(trace, streams)
        roots = processes(trace, found.streams)
        if arguments.json:
            print(report_json(trace, found, roots, faults[:_FAULTS], _CALLS))
        else:
            _print_head(trace, roots, faults)
            _print_streams(found.streams)
            _print_functions(found, arguments.top)
            _print_problems(trace, found)
        return 3 if found.has_gaps or trace.image_problems else 0


def _print_head(trace: Trace, roots: Sequence[Node], faults: Sequence[Crash]) -> None:
    command = " ".join(trace.command_line)
    print(f"{trace.path}: {command}" if command else trace.path)
    for name, value in trace.facts.items():
        print(f"  {name}: {value}")
    count = size(roots)
    if count == 1:
        for ended in trace.endings:
            print(f"  {ended}")
    for fault in faults[:_FAULTS]:
        _print_fault(fault)
    _print_rest(len(faults) - _FAULTS, "faults")
    if trace.incomplete:
        print(f"  incomplete: {trace.incomplete}")
    if count > 1:
        print()
        tree = lines(roots)
        for line in islice(tree, _PROCESSES):
            print(line)
        rest = list(tree)
        _print_rest(len(rest) - 1, "lines of processes")
        for line in rest[-1:]:
            print(line)


def _print_streams(streams: Sequence[StreamStatistics]) -> None:
    print(f"\n{'instructions':>14} {'branches':>12} {'PT bytes':>12} {'B/1000':>8}  stream")
    largest = sorted(streams, key=lambda each: -each.instructions)[:_STREAMS]
    shown = set(map(id, largest))
    for each in streams:
        if id(each) in shown:
            print(
                f"{each.instructions:14,} {each.branches:12,} {each.pt_bytes:12,} "
                f"{each.bytes_per_1000:8.1f}  {each.title}"
            )
    _print_rest(len(streams) - _STREAMS, "smaller ones")


def _print_functions(found: Statistics, top: int) -> None:
    if found.functions:
        print(f"\n{'instructions':>14} {'share':>7}  function")
    whole = found.instructions or 1
    for (name, module), count in found.functions.most_common(top):
        place = PurePath(module).name or "unknown"
        print(f"{count:14,} {count / whole:7.1%}  {f'{name} ({place})' if name else place}")
    _print_rest(len(found.functions) - top, "functions")
    print()


def _print_problems(trace: Trace, found: Statistics) -> None:
    for problem in trace.image_problems:
        print(f"image: {problem}")
    if found.streams and not found.has_gaps:
        whole = sum(each.pt_bytes for each in found.streams)
        print(f"ledger: all {whole:,} bytes exact")
        return
    exact = [each for each in found.streams if not each.losses]
    if len(exact) > 1:
        whole = sum(each.pt_bytes for each in exact)
        print(f"ledger: all {whole:,} bytes of {len(exact):,} streams exact")
    for each in found.streams:
        if not each.losses and len(exact) > 1:
            continue
        share = each.exact_bytes / each.pt_bytes if each.pt_bytes else 1.0
        part = f"{each.exact_bytes:,} of {each.pt_bytes:,} bytes exact ({share:.1%})"
        print(f"ledger: {each.title}: {part}")
        for span in each.losses[:20]:
            print(f"  {span}")
        if len(each.losses) > 20:
            print(f"  ... and {len(each.losses) - 20} more")


def _print_rest(count: int, what: str) -> None:
    if count > 0:
        print(f"{'':22}  ... and {count:,} more {what}")


def _print_fault(fault: Crash) -> None:
    place = f"{fault.symbol} ({fault.source})" if fault.source else fault.symbol
    print(f"  fault: thread {fault.tid}: {fault.ending} in {place}: {fault.assembly}")
    for number, (caller, called) in enumerate(fault.calls(_CALLS)):
        print(f"    {'' if number else 'last calls:':11} {caller} -> {called}")
