"""`rtit lint FILE`: where a stream breaks the rules of the chapter, a line each."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rtit.cli import out
from rtit.cli.bare import add_raw
from rtit.cli.gaps import Gaps
from rtit.cli.inputs import add_file, opened
from rtit.cli.selecting import add_streams, selection
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.linter import Finding
    from rtit.trace import Stream, Trace

_NONE = "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_file(parser)
    add_streams(parser)
    add_raw(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--rules", action="store_true", help="list the rules, and read no file")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="RULE[,RULE...]", help="leave these out"
    )
    parser.add_argument(
        "--errata",
        metavar="NAME[,NAME...]",
        help="leave out what these errata excuse (default: those of the processor that the "
        f"recording names; {_NONE}: nothing is excused)",
    )
    parser.add_argument(
        "--psb-period",
        type=_bytes,
        metavar="BYTES",
        help="how often a PSB comes (default: what the recording says)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 if there are any, 3 if there are none and the file was cut."""
    from rtit.linter import RULES, lint

    if arguments.rules:
        for rule in {rule.name: rule for rule in RULES}.values():
            out.line(f"{rule.name:<16} {rule.section:<26} {rule.says}")
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

    bare = arguments.raw is not None
    with opened(arguments) as trace:
        period = arguments.psb_period or (None if bare else _psb_period(trace))
        for stream in selection(arguments).streams(trace.streams):
            errata = _errata_of(stream) if chosen is None else chosen
            title = None if bare else stream.title
            show(title, lint(stream.parts(), psb_period=period, errata=errata))
        gaps = Gaps("lint", trace).exit_code()
    return 1 if found else gaps


def _show(title: str | None, finding: Finding, *, as_json: bool) -> None:
    if not as_json:
        out.line(f"{title}: {finding}" if title else str(finding))
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
    out.document(fields)


def _rules(texts: list[str], known: set[str]) -> set[str]:
    names = {name for text in texts for name in text.split(",")}
    if unknown := sorted(names - known):
        raise UsageError(f"there is no rule {unknown[0]!r}; rtit lint --rules lists them")
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
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes")
    return int(text)
