"""`rtit report FILE`: what ran."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import PurePath

from rtit.cli.inputs import add_file, add_images, opened
from rtit.cli.selecting import add_streams, selection
from rtit.cli.watching import watched
from rtit.trace import Stream, Trace
from rtit.views.crash import Crash, crash
from rtit.views.statistics import Statistics, statistics

_CALLS = 5
_ENDINGS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    add_streams(parser)
    add_images(parser)
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
        if arguments.json:
            _print_json(trace, found)
        else:
            _print_text(trace, streams, found, arguments.top)
        return 3 if found.has_gaps or trace.image_problems else 0


def _print_text(trace: Trace, streams: list[Stream], found: Statistics, top: int) -> None:
    command = " ".join(trace.data.command_line)
    print(f"{trace.path}: {command}" if command else trace.path)
    for name, value in trace.data.facts.items():
        print(f"  {name}: {value}")
    for ended in trace.endings[:_ENDINGS]:
        print(f"  {ended}")
    if len(trace.endings) > _ENDINGS:
        print(f"  ... and {len(trace.endings) - _ENDINGS} more processes")
    for stream in streams:
        if (fault := crash(trace, stream)) is not None:
            _print_fault(stream, fault)
    if trace.incomplete:
        print(f"  incomplete: {trace.incomplete}")
    print(f"\n{'instructions':>14} {'branches':>12} {'PT bytes':>12} {'B/1000':>8}  stream")
    for each in found.streams:
        print(
            f"{each.instructions:14,} {each.branches:12,} {each.pt_bytes:12,} "
            f"{each.bytes_per_1000:8.1f}  {each.title}"
        )
    if found.functions:
        print(f"\n{'instructions':>14} {'share':>7}  function")
    whole = found.instructions or 1
    for (name, module), count in found.functions.most_common(top):
        place = PurePath(module).name or "unknown"
        print(f"{count:14,} {count / whole:7.1%}  {f'{name} ({place})' if name else place}")
    if len(found.functions) > top:
        print(f"{'':22}  ... and {len(found.functions) - top} more")
    print()
    for problem in trace.image_problems:
        print(f"image: {problem}")
    if found.streams and not found.has_gaps:
        size = sum(each.pt_bytes for each in found.streams)
        print(f"ledger: all {size:,} bytes exact")
        return
    for each in found.streams:
        share = each.exact_bytes / each.pt_bytes if each.pt_bytes else 1.0
        exact = f"{each.exact_bytes:,} of {each.pt_bytes:,} bytes exact ({share:.1%})"
        print(f"ledger: {each.title}: {exact}")
        for span in each.losses[:20]:
            print(f"  {span}")
        if len(each.losses) > 20:
            print(f"  ... and {len(each.losses) - 20} more")


def _print_fault(stream: Stream, fault: Crash) -> None:
    place = f"{fault.symbol} ({fault.source})" if fault.source else fault.symbol
    print(f"  fault: thread {stream.tid}: {fault.ending} in {place}: {fault.assembly}")
    for number, call in enumerate(fault.calls(_CALLS)):
        print(f"    {'' if number else 'last calls:':11} {call}")


def _print_json(trace: Trace, found: Statistics) -> None:
    report = {
        "file": trace.path,
        "command": trace.data.command_line,
        "facts": trace.data.facts,
        "incomplete": trace.incomplete,
        "endings": [
            {
                "pid": each.pid,
                "tid": each.tid,
                "time": each.time,
                "exit_code": each.ending.exit_code,
                "signal": each.ending.signal,
                "fault": each.ending.fault and asdict(each.ending.fault),
            }
            for each in trace.endings
        ],
        "streams": [
            {
                "title": each.title,
                "instructions": each.instructions,
                "branches": each.branches,
                "pt_bytes": each.pt_bytes,
                "exact_bytes": each.exact_bytes,
                "losses": [str(span) for span in each.losses],
            }
            for each in found.streams
        ],
        "functions": [
            {"function": name, "module": module, "instructions": count}
            for (name, module), count in found.functions.most_common()
        ],
        "image_problems": [str(problem) for problem in trace.image_problems],
    }
    print(json.dumps(report, indent=2))
