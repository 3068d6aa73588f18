"""`rtit lint FILE`: one line for each violation of the rules of the Intel SDM."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rtit.cli import output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.input_options import add_file, open_trace
from rtit.cli.parser import CommandParser
from rtit.cli.raw_options import add_raw
from rtit.cli.selection_options import add_json, add_streams, selection
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.linter import Finding
    from rtit.trace import Stream, Trace

_NONE = "none"


_EPILOG = """Examples:
  rtit lint
  rtit lint --raw trace.pt --cpu-model 6/94/3
  rtit lint --rules
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit lint [options] [FILE]"
    parser.epilog = _EPILOG
    add_file(parser)
    group = parser.add_argument_group("Output")
    add_json(group)
    group.add_argument("--rules", action="store_true", help="List the rules, and read no file")
    group = parser.add_argument_group("Rules")
    group.add_argument(
        "--ignore", action="append", default=[], metavar="RULE,...", help="Leave out these rules"
    )
    group.add_argument(
        "--errata",
        metavar="NAME,...",
        help="Leave out what these errata excuse (default: those of the recorded processor; "
        f"{_NONE}: excuse nothing)",
    )
    group.add_argument(
        "--psb-period",
        type=_bytes,
        metavar="BYTES",
        help="Expect a PSB so often (default: as the recording says)",
    )
    add_streams(parser)
    add_raw(parser)
    parser.add_general_options(rare="options for raw PT")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if there are any, 3 if there are none and the file was cut."""
    from rtit.linter import RULES, lint

    if arguments.rules:
        for rule in {rule.name: rule for rule in RULES}.values():
            output.print_line(f"{rule.name:<16} {rule.section:<26} {rule.says}")
        return 0
    ignored = _rules(arguments.ignore, {rule.name for rule in RULES})
    chosen = _errata(arguments.errata)
    found = False

    def show(title: str | None, findings: Iterable[Finding]) -> None:
        nonlocal found
        for finding in findings:
            if finding.rule.name not in ignored:
                found = True
                _show(title, finding, as_json=arguments.json)

    raw = arguments.raw is not None
    with open_trace(arguments) as trace:
        period = arguments.psb_period or (None if raw else _psb_period(trace))
        for stream in selection(arguments).select_streams(trace.streams):
            errata = _errata_of(stream) if chosen is None else chosen
            title = None if raw else stream.title
            show(title, lint(stream.chunks(), psb_period=period, errata=errata))
        gaps = IncompleteReport("lint", trace).exit_code()
    return 1 if found else gaps


def _show(title: str | None, finding: Finding, *, as_json: bool) -> None:
    if not as_json:
        output.print_line(f"{title}: {finding}" if title else str(finding))
        return
    fields = {
        "stream": title,
        "offset": finding.offset,
        "packet": finding.packet,
        "rule": finding.rule.name,
        "section": finding.rule.section,
        "says": finding.rule.says,
        "detail": finding.detail,
    }
    output.write_json(fields)


def _rules(texts: list[str], known: set[str]) -> set[str]:
    names = {name for text in texts for name in text.split(",")}
    if unknown := sorted(names - known):
        raise UsageError(
            f"--ignore: unknown rule {unknown[0]!r}", hint="rtit lint --rules lists them"
        )
    return names


def _errata(text: str | None) -> tuple[str, ...] | None:
    """The errata named, None if it is left to the recording. Raises UsageError."""
    from rtit.registers.errata import erratum_name

    if text is None:
        return None
    try:
        return () if text == _NONE else tuple(erratum_name(name) for name in text.split(","))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _errata_of(stream: Stream) -> tuple[str, ...]:
    """Those of the processor that a stream comes from, as far as the recording says."""
    from rtit.registers.errata import errata_of
    from rtit.trace import Settings

    settings = stream.settings
    cpu = settings.cpu if isinstance(settings, Settings) else None
    return errata_of(cpu[0], cpu[1]) if cpu is not None else ()


def _psb_period(trace: Trace) -> int | None:
    """Bytes between PSBs as the recording's event has them; 0 is also what a processor has that
    offers no choice.
    """
    from rtit.perfdata.attr import config_value

    event = trace.data.intel_pt
    chosen = config_value(event.attr.config, "psb_period") if event is not None else 0
    return 2048 << chosen if chosen else None


def _bytes(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 19 and int(text)):
        raise argparse.ArgumentTypeError(f"expected a number of bytes, got {text!r}")
    return int(text)
