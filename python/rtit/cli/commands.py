"""The list of commands, as `rtit --help` shows it, and the parser of one of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

from rtit.cli.parser import CommandParser, ProgramParser

if TYPE_CHECKING:
    import argparse
    from types import ModuleType


class Command(NamedTuple):
    """A command: its line in `rtit --help`, and its module in `rtit.cli`."""

    summary: str
    module: str


GROUPS = {
    "Record and look": {
        "record": Command("Run a program and record its execution to perf.data", "look.record"),
        "report": Command(
            "Summarize a recording: threads, hot functions, lost data", "look.report"
        ),
        "view": Command(
            "Show a recording in a browser: calls, timeline, functions, coverage", "look.view"
        ),
        "calls": Command("Show who called whom, as a tree", "look.calls"),
        "timeline": Command(
            "Write a timeline of calls for Perfetto, Chrome, speedscope or uftrace", "look.timeline"
        ),
        "instructions": Command("List every executed instruction", "look.instructions"),
        "branches": Command("List every branch: source and target", "look.rows"),
        "blocks": Command("List every contiguous sequence of executed instructions", "look.rows"),
        "edges": Command("Count how often each branch went to each target", "look.rows"),
        "events": Command("List interrupts, transactions, PTWRITEs and power events", "look.rows"),
        "query": Command(
            "Run a SELECT statement on packets, blocks, calls and other tables", "look.query"
        ),
        "info": Command("Show the machine, settings and files of a recording", "look.info"),
    },
    "Measure and compare": {
        "stat": Command(
            "Count instructions, branches and calls; compare with a baseline", "measure.stat"
        ),
        "coverage": Command(
            "Show which lines and branches ran (HTML, lcov, Cobertura, drcov, AFL)",
            "measure.coverage",
        ),
        "annotate": Command(
            "Show the source and machine code of a function with exact counts", "measure.annotate"
        ),
        "profile": Command(
            "Write exact counts in the format of BOLT, AutoFDO, LLVM, pprof, callgrind or perf",
            "measure.profile",
        ),
        "diff": Command(
            "Find where two recordings diverge, and which functions have different counts",
            "measure.diff",
        ),
        "gdb": Command("Debug a recording in gdb, forwards and backwards", "measure.gdb"),
    },
    "Move recordings": {
        "pack": Command(
            "Put a recording and the code that decoding needs into one file", "move.pack"
        ),
        "convert": Command(
            "Convert a recording to raw PT and memory mappings, or raw PT to a recording",
            "move.convert",
        ),
        "export": Command("Write tables of a recording as Parquet files", "move.export"),
    },
    "Intel PT internals": {
        "packets": Command("List the packets of a trace", "internals.packets"),
        "verify": Command(
            "Check that the decoded path is the path that the program executed", "internals.verify"
        ),
        "lint": Command(
            "Check a packet stream against the rules of the Intel SDM", "internals.lint"
        ),
        "scenario": Command(
            "Check which packets the model of the trace unit writes for given events",
            "internals.scenario",
        ),
        "msr": Command("Explain the value of a PT control register (MSR)", "internals.msr"),
        "cpuid": Command("Explain the CPUID leaves of PT", "internals.cpuid"),
        "doctor": Command(
            "Check which PT hardware, back ends and tools this machine has", "internals.doctor"
        ),
    },
}

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def load_command(name: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(f"rtit.cli.{COMMANDS[name].module}")


def command_parser(name: str) -> CommandParser:
    """Return the parser of a command; its module is imported, no other."""
    parser = (ProgramParser if name == "stat" else CommandParser)(f"rtit {name}")
    declare_options(parser, name)
    return parser


def declare_options(parser: CommandParser, name: str) -> None:
    """Declare the options of a command."""
    parser.usage = f"rtit {name} [options] [FILE]"
    parser.set_defaults(command=name)
    parser.description = f"{COMMANDS[name].summary}."
    load_command(name).add_arguments(parser)


def add_all_commands(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[CommandParser]:
    """Add every command with its options, for tools that want the whole command line at once."""
    commands = parser.add_subparsers(dest="command", parser_class=CommandParser)
    for name, command in COMMANDS.items():
        declare_options(commands.add_parser(name, help=command.summary), name)
    return commands
