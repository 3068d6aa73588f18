"""`rtit lint FILE`: one line for each violation of the rules of the Intel SDM."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rtit.cli import options, output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.linter import Finding
    from rtit.trace import Trace

_NONE = "none"

_EPILOG = """Examples:
  rtit lint
  rtit lint --raw trace.pt --cpu-model 6/94/3
  rtit lint --rules
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    group = parser.add_argument_group("Output")
    options.add_json_option(group)
    options.add_flag_option(group, "--rules", "List all rules and exit")
    group = parser.add_argument_group("Rules")
    options.add_list_option(group, "--ignore", "RULE,...", "Do not check these rules")
    options.add_value_option(
        group,
        "--errata",
        "NAME,...",
        "Ignore violations that these errata of the processor explain. The NAME "
        f"'{_NONE}' means no errata (default: the errata of the recorded processor)",
    )
    options.add_value_option(
        group,
        "--psb-period",
        "BYTES",
        "Expect a PSB packet at least every BYTES bytes (default: the PSB period of the recording)",
        type=_parse_number_of_bytes,
    )
    options.add_stream_options(parser)
    options.add_raw_options(parser)
    parser.add_general_options(rare="the options for raw PT")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if there are any, 3 if there are none and the file was cut."""
    from rtit.linter import RULES, lint

    if arguments.rules:
        for rule in {rule.name: rule for rule in RULES}.values():
            output.print_line(f"{rule.name:<16} {rule.section:<26} {rule.says}")
        return 0
    ignored = _parse_rule_names(arguments.ignore, {rule.name for rule in RULES})
    chosen = _parse_errata(arguments.errata)
    found = False

    def show_findings(title: str | None, findings: Iterable[Finding]) -> None:
        nonlocal found
        for finding in findings:
            if finding.rule.name not in ignored:
                found = True
                _print_finding(title, finding, as_json=arguments.json)

    raw = arguments.raw is not None
    with options.open_trace(arguments) as trace:
        period = arguments.psb_period or (None if raw else _psb_period(trace))
        streams = options.parse_selection(arguments).select_streams(trace.streams)
        with show_progress("lint", streams, prints=True):
            for stream in streams:
                errata = options.stream_errata(stream) if chosen is None else chosen
                title = None if raw else stream.title
                show_findings(title, lint(stream.chunks(), psb_period=period, errata=errata))
        gaps = IncompleteReport("lint", trace).exit_code()
    return 1 if found else gaps


def _print_finding(title: str | None, finding: Finding, *, as_json: bool) -> None:
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


def _parse_rule_names(texts: list[str], known: set[str]) -> set[str]:
    names = {name for text in texts for name in text.split(",")}
    if unknown := sorted(names - known):
        raise UsageError(
            f"--ignore: unknown rule {unknown[0]!r}", hint="rtit lint --rules lists the rules"
        )
    return names


def _parse_errata(text: str | None) -> tuple[str, ...] | None:
    """Return the errata of --errata, None without the option. Raises UsageError."""
    from rtit.registers.errata import erratum_name

    if text is None:
        return None
    try:
        return () if text == _NONE else tuple(erratum_name(name) for name in text.split(","))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _psb_period(trace: Trace) -> int | None:
    """Return the bytes between PSBs by the recorded event, None for the processor's default."""
    from rtit.perfdata.attr import config_value

    event = trace.data.intel_pt
    chosen = config_value(event.attr.config, "psb_period") if event is not None else 0
    return 2048 << chosen if chosen else None


def _parse_number_of_bytes(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 19 and int(text)):
        raise argparse.ArgumentTypeError(f"expected a number of bytes, got {text!r}")
    return int(text)
