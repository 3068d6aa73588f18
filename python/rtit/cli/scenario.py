"""`rtit scenario`: events and their packets side by side, against what is expected."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtit.cli import out
from rtit.cli.written import whole
from rtit.errors import ScenarioError, UsageError

if TYPE_CHECKING:
    from rtit.scenario import Scenario

_EPILOG = """examples:
  rtit scenario --list
  rtit scenario table_33_10_begin
  rtit scenario table_33_10_begin --set tnt_form=long --profile skylake
  rtit scenario my.scenario --raw trace.pt && rtit packets --raw trace.pt

exit codes: 0 all as expected; 1 something differs, or a file is no scenario; 2 usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="scenario files, folders of them, or names that --list shows",
    )
    parser.add_argument(
        "--list", action="store_true", help="list scenarios by section of the chapter, run none"
    )
    parser.add_argument(
        "--format", action="store_true", help="describe the format and its events, run none"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", "-q", action="store_true", help="only events that differ")
    parser.add_argument("--profile", metavar="NAME", help="run on this processor instead")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the unit, as in a `parameters` line; may be repeated",
    )
    parser.add_argument("--raw", metavar="OUT", help="write the bytes of the one scenario to OUT")


def run(arguments: argparse.Namespace) -> int:
    """Run or list; 1 if something differs or is no scenario."""
    from rtit.scenario import shipped

    if arguments.format:
        from rtit.scenario.show import format_of_scenarios

        for each in format_of_scenarios():
            out.line(each)
        return 0
    paths = list(_paths(arguments.files)) or (shipped() if arguments.list else [])
    if not paths:
        raise UsageError("nothing to run: give scenario files or names; --list shows the names")
    if arguments.raw and (arguments.list or len(paths) > 1):
        raise UsageError("--raw writes the bytes of one scenario: give one FILE")
    return _list(paths, arguments) if arguments.list else _run(paths, arguments)


def _paths(words: list[str]) -> Iterator[Path]:
    from rtit.scenario import find
    from rtit.scenario.shipped import files_in

    for word in words:
        path = find(word)
        if path.is_dir():
            found = files_in(path)
            if not found:
                raise UsageError(f"there is no .scenario file in {path}")
            yield from found
        else:
            yield path


def _loaded(paths: list[Path]) -> Iterator[Scenario | None]:
    """Each scenario; None, and a sentence on stderr, for what is none."""
    from rtit.scenario import load

    for path in paths:
        try:
            yield load(path)
        except (ScenarioError, OSError) as error:
            _complain(error)
            yield None


def _complain(error: ScenarioError | OSError) -> None:
    text = str(error)
    if isinstance(error, OSError):
        text = f"{error.filename}: {error.strerror or error}"
    out.complain("scenario", text)


def _list(paths: list[Path], arguments: argparse.Namespace) -> int:
    from rtit.scenario.show import heading_json, listing

    loaded = list(_loaded(paths))
    scenarios = [each for each in loaded if each is not None]
    if arguments.json:
        out.document({"scenarios": [heading_json(each) for each in scenarios]}, indent=2)
    else:
        for line in listing(scenarios):
            out.line(line)
    return int(None in loaded)


def _run(paths: list[Path], arguments: argparse.Namespace) -> int:
    from rtit.scenario.runner import override

    parameters = _assignments(arguments.set)
    documents: list[dict[str, Any]] = []
    different = refused = 0
    for scenario in _loaded(paths):
        if scenario is None:
            refused += 1
            continue
        changed = override(scenario, profile=arguments.profile, parameters=parameters)
        document, raw = _run_one(changed, arguments)
        documents.append(document)
        refused += "error" in document
        different += not document["as_expected"] and "error" not in document
        if arguments.raw:
            with whole(arguments.raw) as file:
                file.write(raw)
    if arguments.json:
        as_expected = not (different or refused)
        out.document({"scenarios": documents, "as_expected": as_expected}, indent=2)
    elif len(paths) > 1:
        _sum(len(paths), different, refused)
    return int(bool(different or refused))


def _run_one(scenario: Scenario, arguments: argparse.Namespace) -> tuple[dict[str, Any], bytes]:
    """Run a scenario, printing unless as JSON: what JSON has of it, and its bytes."""
    from rtit.scenario import Step, steps
    from rtit.scenario.show import heading_json, left_width, text_of, title, to_json

    speak = not arguments.json
    if speak and not arguments.quiet:
        for each in title(scenario).splitlines():
            out.line(each)
    done: list[Step] = []
    document = heading_json(scenario)
    try:
        for step in steps(scenario):
            done.append(step)
            if speak and not (arguments.quiet and step.as_expected):
                if arguments.quiet:
                    out.line(f"{scenario.source}:{step.event.line}:")
                for line in text_of(step, left_width(scenario)):
                    out.line(line)
    except ScenarioError as error:
        out.flush()
        _complain(error)
        document["error"] = str(error)
    wrong = sum(not step.as_expected for step in done)
    document["events"] = [to_json(step) for step in done]
    document["as_expected"] = not wrong and "error" not in document
    if speak and not arguments.quiet:
        packets = sum(len(step.lines) for step in done)
        if wrong:
            out.line(f"DIFFERENT: {wrong} of {len(done)} events")
        elif "error" not in document:
            out.line(f"as expected: {len(done)} events, {packets} packets")
    return document, b"".join(step.raw for step in done)


def _sum(total: int, different: int, refused: int) -> None:
    parts = [f"{different} differ"] if different else []
    parts += [f"{refused} cannot be run"] if refused else []
    out.line(f"{total} scenarios: {', '.join(parts) or 'all as expected'}")


def _assignments(words: list[str]) -> dict[str, str]:
    for word in words:
        if "=" not in word:
            raise UsageError(f"--set takes NAME=VALUE, not {word!r}")
    return {name: value for name, _, value in (word.partition("=") for word in words)}
