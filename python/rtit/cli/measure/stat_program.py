"""`rtit stat -- PROGRAM ARGS`: runs a program, and counts without a trace."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rtit.capture.output_files import ReservedOutput
from rtit.capture.request import RecordRequest
from rtit.cli import output
from rtit.cli.child_process import ending_signals, wait_for_program
from rtit.cli.measure import stat_text
from rtit.counting.run import CountedRun, CountingRun, RunVariation, choose_counting_backend
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.profile.stat import Baseline


def run(arguments: argparse.Namespace, baseline: Baseline | None) -> int:
    """Run the program as often as --runs says, and print its counts; return the exit code."""
    argv: Sequence[str] = arguments.program
    if not argv:
        raise UsageError("no program given", hint="example:  rtit stat -- ls -l")
    if any(each is not None for each in (arguments.file, arguments.input, arguments.raw)):
        raise UsageError("a recording or a program, not both")
    for each in arguments.recording_only:
        if getattr(arguments, each.dest) != each.default:
            option = arguments.code[0][0] if each.dest == "code" else each.option_strings[0]
            raise UsageError(f"{option} is for a recording; a program is counted as a whole")
    with ExitStack() as files:
        path = None if arguments.output in (None, "-") else arguments.output
        # A path that cannot be written is an error before the program runs.
        report = files.enter_context(ReservedOutput(path)) if path else None
        runs = _runs(arguments, argv)
        spread = RunVariation([each.stat for each in runs])
        lines = [*_report(arguments, spread, baseline)]
        if report is not None:
            with report.open_for_writing() as file:
                file.writelines(stat_text.as_bytes(lines))
        else:
            # The program's output is its own.
            stream = sys.stdout if arguments.output == "-" else sys.stderr
            for line in lines:
                output.print_line(line, to=stream)
    for warning in dict.fromkeys(text for each in runs for text in each.warnings):
        output.print_error("stat", warning)
    found = spread.least
    for line in [*stat_text.unnamed(found, arguments.per), *found.missing]:
        output.print_error("stat", f"missing: {line}")
    failed = next((each.exit_code for each in runs if each.exit_code), 0)
    limit = arguments.fail_above
    if failed or limit is None or baseline is None:
        return failed
    if not all(each.whole for each in runs):
        output.print_error("stat", "some counts are missing: --fail-above cannot be checked")
        return 1
    return int(stat_text.share(found, baseline) > limit)


def _runs(arguments: argparse.Namespace, argv: Sequence[str]) -> list[CountedRun]:
    wanted = ending_signals()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    asked = (arguments.per, arguments.baseline)
    where = arguments.json or arguments.runs > 1 or asked != (None, None)
    request = RecordRequest(
        argv, backend=arguments.backend, blocked=blocked, qemu_env=arguments.qemu_env
    )
    choice = choose_counting_backend(request)
    runs = []
    for _ in range(arguments.runs):
        with CountingRun(request, choice, where=where, places=arguments.max_edges) as counting:
            asked_to_end = wait_for_program(counting.session, wanted, patient=True)
            runs.append(counting.finish())
        if asked_to_end:
            break
    return runs


def _report(
    arguments: argparse.Namespace, spread: RunVariation, baseline: Baseline | None
) -> Iterator[str]:
    found = spread.least
    if arguments.json:
        value = found.as_json()
        if len(spread.runs) > 1:
            value["runs"] = spread.as_json()
        yield from stat_text.document(value)
        return
    yield from stat_text.lines(found, arguments.per, arguments.top)
    if len(spread.runs) > 1:
        yield ""
        yield from _spread(spread, arguments.top)
    if baseline is not None:
        yield ""
        yield from stat_text.changes(found, baseline, arguments.fail_above, arguments.top)


def _spread(spread: RunVariation, top: int) -> Iterator[str]:
    runs = len(spread.runs)
    if not spread.counts and not spread.functions:
        yield f"the same in all {runs} runs"
        return
    yield f"in {runs} runs, of which the one with the fewest instructions stands above:"
    for name, least, most in spread.counts:
        yield f"{f'+{most - least:,}':>18}  {name}: {least:,} to {most:,}"
    for name, least, most in spread.functions[:top]:
        yield f"{f'+{most - least:,}':>18}  {name}: {least:,} to {most:,}"
    if len(spread.functions) > top:
        yield f"{'':18}  ... and {len(spread.functions) - top:,} more functions"
    yield from (f"  {text}" for text in spread.why())
