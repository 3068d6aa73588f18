"""`rtit scenario`: runs events, and compares their packets with those expected."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtit.cli import options, output
from rtit.cli.parser import CommandParser
from rtit.errors import ScenarioError, UsageError

if TYPE_CHECKING:
    from rtit.scenario import Scenario, ScenarioStep

_EPILOG = """Examples:
  rtit scenario --list
  rtit scenario table_33_10_begin
  rtit scenario table_33_10_begin --set tnt_form=long --profile skylake
  rtit scenario my.scenario --raw trace.pt && rtit packets --raw trace.pt
  rtit scenario table_33_10_begin --html begin.html

Exit codes: 0 if all packets are as expected, 1 if packets differ or a file is not a scenario, 2 for
an invalid command line.
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit scenario [options] [FILE...]"
    parser.description = (
        "Run scenarios. A scenario is a list of events, with the packets that each event must "
        "produce."
    )
    parser.epilog = _EPILOG
    parser.add_argument_group().add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="Scenario file, directory of scenario files, or name of a scenario from --list",
    )
    group = parser.add_argument_group("Output")
    options.add_flag_option(group, "--list", "List the scenarios by section of the Intel SDM")
    options.add_flag_option(group, "--syntax", "Describe the syntax of scenario files")
    options.add_json_option(group, "Print JSON")
    group.add_argument("--quiet", "-q", action="store_true", help="Print only differences")
    options.add_value_option(
        group,
        "--raw",
        "FILE",
        "Write the packets of the scenario to FILE, as raw PT (only with one scenario)",
    )
    options.add_value_option(
        group,
        "--html",
        "FILE",
        "Write a web page to FILE, with the events, the enables over time, and the bits of each "
        "packet (only with one scenario)",
    )
    group = parser.add_argument_group("Processor")
    options.add_value_option(
        group, "--profile", "NAME", "Run the scenarios on a model of the processor NAME"
    )
    options.add_list_option(
        group,
        "--set",
        "NAME=VALUE",
        "Set a parameter of the trace unit, like a 'parameters' line in a scenario; may be "
        "repeated",
    )
    parser.add_general_options()


def run(arguments: argparse.Namespace) -> int:
    """Run or list; return 1 if something differs or is no scenario."""
    from rtit.scenario import shipped_scenarios

    if arguments.syntax:
        from rtit.scenario.report import describe_format

        for each in describe_format():
            output.print_line(each)
        return 0
    paths = list(_find_scenario_files(arguments.files)) or (
        shipped_scenarios() if arguments.list else []
    )
    if not paths:
        raise UsageError("no scenario given", hint="rtit scenario --list shows the names")
    for option in ("raw", "html"):
        if getattr(arguments, option) and (arguments.list or len(paths) > 1):
            raise UsageError(f"--{option} writes one scenario: give only one FILE")
    return (
        _print_scenario_titles(paths, arguments)
        if arguments.list
        else _run_scenarios(paths, arguments)
    )


def _find_scenario_files(words: list[str]) -> Iterator[Path]:
    from rtit.scenario import find_scenario
    from rtit.scenario.catalogue import scenario_files

    for word in words:
        path = find_scenario(word)
        if path.is_dir():
            found = scenario_files(path)
            if not found:
                raise UsageError(f"no .scenario file in {path}")
            yield from found
        else:
            yield path


def _load_scenarios(paths: list[Path]) -> Iterator[Scenario | None]:
    """Yield each scenario; for a bad file print an error, and yield None."""
    from rtit.scenario import load

    for path in paths:
        try:
            yield load(path)
        except (ScenarioError, OSError) as error:
            _print_error(error)
            yield None


def _print_error(error: ScenarioError | OSError) -> None:
    text = str(error)
    if isinstance(error, OSError):
        text = f"{error.filename}: {error.strerror or error}"
    output.print_error("scenario", text)


def _print_scenario_titles(paths: list[Path], arguments: argparse.Namespace) -> int:
    from rtit.scenario.report import list_by_section, scenario_to_json

    loaded = list(_load_scenarios(paths))
    scenarios = [each for each in loaded if each is not None]
    if arguments.json:
        output.write_json({"scenarios": [scenario_to_json(each) for each in scenarios]}, indent=2)
    else:
        for line in list_by_section(scenarios):
            output.print_line(line)
    return int(None in loaded)


def _run_scenarios(paths: list[Path], arguments: argparse.Namespace) -> int:
    from rtit.scenario.runner import with_settings

    parameters = _parse_assignments(arguments.set)
    documents: list[dict[str, Any]] = []
    different = refused = 0
    for scenario in _load_scenarios(paths):
        if scenario is None:
            refused += 1
            continue
        changed = with_settings(scenario, profile=arguments.profile, parameters=parameters)
        document, steps = _run_one_scenario(changed, arguments)
        documents.append(document)
        refused += "error" in document
        different += not document["as_expected"] and "error" not in document
        if arguments.raw:
            with output.atomic_file(arguments.raw) as file:
                file.writelines(step.raw for step in steps)
        if arguments.html:
            from rtit.scenario.html import scenario_page

            with output.atomic_file(arguments.html) as file:
                file.writelines(scenario_page(changed, steps, error=document.get("error", "")))
    if arguments.json:
        as_expected = not (different or refused)
        output.write_json({"scenarios": documents, "as_expected": as_expected}, indent=2)
    elif len(paths) > 1:
        _print_totals(len(paths), different, refused)
    return int(bool(different or refused))


def _run_one_scenario(
    scenario: Scenario, arguments: argparse.Namespace
) -> tuple[dict[str, Any], list[ScenarioStep]]:
    """Run a scenario, and print it unless --json; return its JSON value and its steps."""
    from rtit.scenario import run_steps
    from rtit.scenario.report import (
        event_column_width,
        format_step,
        format_title,
        scenario_to_json,
        step_to_json,
    )

    prints = not arguments.json
    if prints and not arguments.quiet:
        for each in format_title(scenario).splitlines():
            output.print_line(each)
    done: list[ScenarioStep] = []
    document = scenario_to_json(scenario)
    try:
        for step in run_steps(scenario):
            done.append(step)
            if prints and not (arguments.quiet and step.as_expected):
                if arguments.quiet:
                    output.print_line(f"{scenario.source}:{step.event.line}:")
                for line in format_step(step, event_column_width(scenario)):
                    output.print_line(line)
    except ScenarioError as error:
        output.flush_output()
        _print_error(error)
        document["error"] = str(error)
    wrong = sum(not step.as_expected for step in done)
    document["events"] = [step_to_json(step) for step in done]
    document["as_expected"] = not wrong and "error" not in document
    if prints and not arguments.quiet:
        packets = sum(len(step.lines) for step in done)
        if wrong:
            output.print_line(f"DIFFERENT: {wrong} of {len(done)} events")
        elif "error" not in document:
            output.print_line(f"as expected: {len(done)} events, {packets} packets")
    return document, done


def _print_totals(total: int, different: int, refused: int) -> None:
    parts = [f"{different} differ"] if different else []
    parts += [f"{refused} cannot be run"] if refused else []
    output.print_line(f"{total} scenarios: {', '.join(parts) or 'all as expected'}")


def _parse_assignments(words: list[str]) -> dict[str, str]:
    for word in words:
        if "=" not in word:
            raise UsageError(f"--set {word}: expected NAME=VALUE")
    return {name: value for name, _, value in (word.partition("=") for word in words)}
