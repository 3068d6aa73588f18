"""`rtit verify FILE --truth TRUTH`: identical, or the first difference."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from rtit.cli import out
from rtit.cli.bare import add_bare_code, add_raw
from rtit.cli.gaps import Gaps
from rtit.cli.inputs import add_file, add_images, add_threads, opened
from rtit.cli.watching import watched

if TYPE_CHECKING:
    from rtit.trace import Trace
    from rtit.views.verify import Ranges


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    parser.add_argument(
        "--truth", required=True, metavar="TRUTH", help="what `rtit record --truth` wrote"
    )
    add_images(parser)
    add_threads(parser)
    bare = add_raw(parser)
    add_bare_code(bare)
    bare.add_argument(
        "--cpu",
        action="append",
        default=[],
        metavar="F/M/S",
        help="family, model and stepping of the processor that was traced",
    )
    bare.add_argument(
        "--tid",
        type=int,
        help="the thread of the truth that the packets are of, if the truth has several",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print a line a thread and the sum.

    Returns 1 if anything differs or there is nothing to compare, 3 if the recording ends early and
    is right up to there.
    """
    from rtit.views.verify import verify

    with opened(arguments) as trace:
        with watched("verify", trace.threads, prints=False):
            verdicts = verify(trace, arguments.truth, filter_ranges(trace), arguments.tid)
        for problem in trace.image_problems:
            out.line(f"image: {problem}")
        gaps = Gaps("verify", trace).exit_code()
    total = 0
    failed = 0
    for each in verdicts:
        total += each.instructions
        if each.identical:
            text = f"identical: {each.instructions:,} instructions in {each.runs:,} runs"
            if each.repeated:
                text += f" ({each.repeated:,} of them in more rounds of loops that have no packets)"
            if each.shortfall:
                text += (
                    f" (a killed recording: {abs(each.shortfall):,} more were executed or traced)"
                )
            if each.part:
                text += f", {each.part} of what was executed"
            if each.part and each.unchecked:
                text += f"; {each.unchecked:,} more at its end lie where nothing tells of them"
        else:
            failed += 1
            text = f"DIFFERENT: {each.reason}"
        out.line(f"thread {each.tid}: {text}")
    if failed:
        out.line(f"DIFFERENT: {failed} of {len(verdicts)} threads")
        return 1
    if not total:
        out.line("nothing to compare: no instruction was traced")
        return 1
    end = ", as far as the recording goes" if gaps else ""
    text = f"identical: {total:,} instructions of {len(verdicts)} threads, decoded as executed{end}"
    out.line(text)
    return gaps


def filter_ranges(trace: Trace) -> Callable[[int], tuple[Ranges, Ranges]]:
    """For each process the linear addresses of the FilterEn and the TraceStop ranges it was
    recorded with.
    """
    from rtit.perfdata.filters import FILTER_EN, parse_kernel_form

    filters = parse_kernel_form(trace.filter) if trace.filter else []
    mappings = trace.mappings()

    def ranges(pid: int) -> tuple[Ranges, Ranges]:
        inside: list[tuple[int, int]] = []
        stops: list[tuple[int, int]] = []
        for each in filters:
            into = inside if each.addr_cfg == FILTER_EN else stops
            for mapping in mappings.get(pid, []):
                size = mapping.end - mapping.start
                found = each.addresses(mapping.start, mapping.offset, size, mapping.path)
                if found is not None:
                    into.append(found)
            if each.addr_cfg == FILTER_EN and not inside:
                inside.append((0, 0))  # its file is not mapped: the filter lets nothing through
        return inside, stops

    return ranges
