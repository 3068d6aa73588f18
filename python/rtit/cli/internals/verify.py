"""`rtit verify FILE --truth TRUTH`: compares a decoded path with what the recorder saw."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from rtit.cli import options, output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress

if TYPE_CHECKING:
    from rtit.trace import Trace
    from rtit.views.verify import Ranges

_EPILOG = """Example:
  rtit verify --truth ls.truth                    # after: rtit record --truth ls.truth -- ls

Exit codes: 0 if all paths are equal, 1 if a path differs or there is no path to compare, 3 if part
of the trace is missing and the decoded part is equal. For a whole system, also 1 if QEMU's log
differs from the state of the processors.
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit verify [options] --truth FILE [FILE]"
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    options.add_value_option(
        parser.add_argument_group("Comparison"),
        "--truth",
        "FILE",
        "File with the executed path, which 'rtit record --truth FILE' wrote",
        required=True,
    )
    options.add_image_options(parser)
    group = options.add_raw_options(parser)
    options.add_raw_code_options(group)
    group.add_argument(
        "--tid",
        type=int,
        help="The thread whose packets are in the --raw file, if the --truth file has several "
        "threads",
    )
    parser.add_general_options(jobs=options.MANY_JOBS, rare=options.RARE)


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each thread, and the result; return 1 if a path differs or there is
    nothing to compare, 3 if the recording ends early and is right up to its end.
    """
    from rtit.perfdata.log_comparisons import FACT, parse_comparisons
    from rtit.views.verify import verify_threads

    with options.open_trace(arguments) as trace:
        with show_progress("verify", trace.threads, prints=False):
            verdicts = verify_threads(
                trace, arguments.truth, filter_ranges_by_process(trace), arguments.tid
            )
        for problem in trace.image_problems:
            output.print_line(f"image: {problem}")
        gaps = IncompleteReport("verify", trace).exit_code()
        # The truth file of a system has one path for each processor.
        is_system = "system" in trace.facts
        one, several = ("CPU", "CPUs") if is_system else ("thread", "threads")
        comparisons = parse_comparisons(trace.facts.get(FACT, ""))
    number = f"{len(verdicts)} {one if len(verdicts) == 1 else several}"
    total = 0
    failed = 0
    for each in verdicts:
        total += each.instructions
        if each.identical:
            text = f"identical: {each.instructions:,} instructions in {each.runs:,} runs"
            if each.repeated:
                text += f" ({each.repeated:,} of them in more iterations of loops without packets)"
            if each.shortfall:
                text += (
                    f" (a killed recording: {abs(each.shortfall):,} more were executed or traced)"
                )
            if each.part:
                text += f", {each.part} of what was executed"
            if each.part and each.unchecked:
                text += f"; {each.unchecked:,} more at its end cannot be compared"
        else:
            failed += 1
            text = f"DIFFERENT: {each.reason}"
        output.print_line(f"{one.lower()} {each.tid}: {text}")
    for compared in comparisons:
        verdict = "DIFFERENT" if compared.differences else "identical"
        output.print_line(f"{compared.name}: {verdict}: {compared}")
    if failed:
        output.print_line(f"DIFFERENT: {failed} of {number}")
        return 1
    if any(each.differences for each in comparisons):
        output.print_line("DIFFERENT: QEMU's log and the state of the processors")
        return 1
    if not total:
        output.print_line("nothing to compare: no instruction was traced")
        return 1
    end = ", as far as the recording goes" if gaps else ""
    output.print_line(f"identical: {total:,} instructions of {number}, decoded as executed{end}")
    return gaps


def filter_ranges_by_process(trace: Trace) -> Callable[[int], tuple[Ranges, Ranges]]:
    """Return a function of a process: the linear addresses of its FilterEn and TraceStop ranges."""
    from rtit.perfdata.filters import FILTER_EN, parse_address_filters

    # The truth file of a system has only what the filters let through.
    is_applied = "system" in trace.facts
    filters = parse_address_filters(trace.filter) if trace.filter and not is_applied else []
    mappings = trace.mappings()

    def ranges_of_process(pid: int) -> tuple[Ranges, Ranges]:
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
                inside.append((0, 0))  # its file is not mapped: the filter excludes everything
        return inside, stops

    return ranges_of_process
