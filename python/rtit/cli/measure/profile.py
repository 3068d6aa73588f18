"""`rtit profile --for TOOL FILE`: exact counts in the format of another tool."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rtit import __version__
from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE
from rtit.cli.many_recordings import ManyRecordings
from rtit.cli.parser import CommandParser
from rtit.cli.progress import show_progress
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.profile.tables import Binary, Profile
    from rtit.trace import Stream, Trace

_ONE = ("bolt", "autofdo", "llvm")
"""Formats of one binary each."""
_NAMED = ("pprof", "callgrind")
"""Formats with calls, and with code outside of files; calls are followed on a CPU as a whole."""

_EPILOG = """For bolt, autofdo and llvm, rtit writes one profile for each binary. With several
binaries, -o FILE writes the profile of the binary NAME to FILE.NAME. These formats add up several
recordings; the other formats take one recording.

To use the profile:
  bolt       perf2bolt -p FILE --pa -o OUT.fdata PROGRAM; llvm-bolt PROGRAM -data OUT.fdata ...
             (on Debian, run /usr/lib/llvm-19/bin/perf2bolt: the command perf2bolt-19 writes an ELF
             file instead of a profile)
  autofdo    create_llvm_prof --profiler=text --profile=FILE --binary=PROGRAM --out=PROFILE
             (build PROGRAM with -gdwarf-4: with DWARF 5 the profile is empty; create_llvm_prof 0.19
             fails if a function is inlined: use llvm instead)
  llvm       llvm-profgen --unsymbolized-profile=FILE --use-offset=0 --binary=PROGRAM
             --output=PROFILE
  pprof      go tool pprof FILE
  callgrind  callgrind_annotate FILE; kcachegrind FILE
  perf       tools that read perf script -F ip,brstack --show-mmap-events, such as
             llvm-profgen --perfscript=FILE --binary=PROGRAM --output=PROFILE
             (FILE has 38 bytes for each taken branch; to select fewer branches, use --tid, --pid
             or --comm)

Examples:
  rtit profile --for callgrind -o callgrind.out
  rtit profile --for bolt --dso program -o program.preagg perf.data
  rtit profile --for llvm -o program.profile recordings/
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit profile [options] --for TOOL [FILE...]"
    parser.epilog = _EPILOG
    options.add_files_argument(parser)
    group = parser.add_argument_group("Output")
    group.add_argument(
        "--for",
        dest="tool",
        required=True,
        metavar="TOOL",
        choices=[*_ONE, "pprof", "callgrind", "perf"],
        help="The tool that reads the profile: bolt, autofdo, llvm, pprof, callgrind or perf",
    )
    options.add_output_option(group)
    options.add_dso_option(
        group,
        "for bolt, autofdo and llvm, the recorded program; for pprof, callgrind and perf, all "
        "binaries",
    )
    options.add_stream_options(parser)
    options.add_max_edges_option(parser, calls=True)
    options.add_common_reading_options(parser, jobs=options.MANY_RECORDINGS_JOBS, dask=True)


def run(arguments: argparse.Namespace) -> int:
    """Write the profile; return 3 if something could not be decoded."""
    if arguments.tool == "perf" and arguments.dso:
        raise UsageError("--for perf always writes all binaries and cannot be combined with --dso")
    names = options.recording_names(arguments)
    if len(names) > 1 and arguments.tool not in _ONE:
        raise UsageError(
            f"--for {arguments.tool} takes one recording, not {len(names):,}; {', '.join(_ONE)} "
            "add up several"
        )
    if arguments.tool in _ONE:
        return _write_counts(arguments, _add_up_recordings(arguments, names))
    arguments.file, arguments.input = names[0], None
    return _write_calls(arguments)


def _add_up_recordings(arguments: argparse.Namespace, names: Sequence[str | None]) -> Profile:
    from rtit.profile.many_profiles import ProfileSum

    many = ManyRecordings("profile", arguments, names)
    where = options.parse_selection(arguments)
    profiles = many.profiles(where)
    if len(names) == 1:
        [(_, found)] = profiles
    else:
        total = ProfileSum()
        for path, each in profiles:
            total.add(each, path)
        total.add_unreadable([*many.unreadable.values()])
        if len(total.programs) > 1 and not arguments.dso:
            raise UsageError(
                f"the recordings are of several programs: {', '.join(total.programs)}",
                hint="select one with --dso NAME, or all binaries with --dso all",
            )
        found = total.profile()
    options.check_path_map(arguments, many.matched_maps)
    return found


def _write_counts(arguments: argparse.Namespace, found: Profile) -> int:
    """Write the profile of each selected binary, without calls."""
    if not arguments.dso and found.main is None and found.losses.describe_losses():
        output.print_error(
            "profile", "no executed code belongs to a known file; no profile was written"
        )
        _print_losses(found, outside=True)
        return EXIT_CODE if found.losses.has_gaps else 1
    binaries = found.select_binaries(arguments.dso)
    _write_profile_per_binary(binaries, _profile_writer_of_tool(arguments.tool), arguments.output)
    return _finish(found, binaries, outside=False)


def _write_calls(arguments: argparse.Namespace) -> int:
    """Write the profile of one recording, with calls or branches in their order."""
    from rtit.profile.builder import build_profile

    tool = arguments.tool
    with options.open_trace(arguments) as trace:
        wanted = options.parse_selection(arguments)
        streams = trace.by_thread(wanted)
        with show_progress("profile", streams, prints=False):
            found = build_profile(trace, streams)
            binaries = found.select_binaries(arguments.dso or ["all"])
            # calls and samples are followed from one branch to the next
            split = trace.select if tool in _NAMED else trace.by_thread
            threads = split(wanted, always_split=True)
            text = _format_profile(tool, trace, threads, found, binaries, whole=not arguments.dso)
            output.write_file_or_stdout(arguments.output, text)
    return _finish(found, binaries, outside=tool in _NAMED and not arguments.dso)


def _finish(found: Profile, binaries: Sequence[Binary], *, outside: bool) -> int:
    _print_summary(found, binaries, outside=outside)
    incomplete = any(each.symbols.has_incomplete_lines for each in binaries)
    return EXIT_CODE if found.losses.has_gaps or incomplete else 0


def _profile_writer_of_tool(tool: str) -> Callable[[Binary], Iterator[str]]:
    from rtit.profile.formats.ranges import autofdo_profile, bolt_profile, llvm_profile

    return {"bolt": bolt_profile, "autofdo": autofdo_profile, "llvm": llvm_profile}[tool]


def _format_profile(
    tool: str,
    trace: Trace,
    streams: Sequence[Stream],
    found: Profile,
    binaries: Sequence[Binary],
    *,
    whole: bool,
) -> Iterable[bytes]:
    from rtit.profile.calls import count_calls
    from rtit.profile.formats.callgrind import callgrind_profile
    from rtit.profile.formats.perf import estimated_script_size, perf_script
    from rtit.profile.formats.pprof import pprof_profile
    from rtit.trace import End

    creator = f"rtit {__version__}"
    if tool == "perf":
        taken = sum(found.transfers.values()) - found.transfers[End.CUT]
        size = estimated_script_size(taken)
        output.print_line(
            f"[ rtit profile: about {size / 1e6:,.1f} MB of text for {taken:,} taken branches ]",
            to=sys.stderr,
        )
        return _encode_lines(perf_script(trace, streams))
    followed = count_calls(trace, streams, found, contexts=tool == "pprof")
    if tool == "pprof":
        missing = found.losses.describe_losses(unmapped=not whole)
        comments = [creator, " ".join(trace.command_line), *missing]
        return pprof_profile(binaries, followed, comments, include_unmapped=whole)
    named = found.unmapped_code if whole else {}
    return _encode_lines(callgrind_profile(binaries, followed, trace.command_line, creator, named))


def _write_profile_per_binary(
    binaries: Sequence[Binary], lines: Callable[[Binary], Iterator[str]], path: str | None
) -> None:
    if len(binaries) == 1:
        output.write_file_or_stdout(path, _encode_lines(lines(binaries[0])))
        return
    if path is None:
        raise UsageError(f"{len(binaries)} binaries need one output file each: give -o FILE")
    names = [each.name for each in binaries]
    for each in binaries:
        # two files of one name differ by their numbers
        name = each.name if names.count(each.name) == 1 else f"{each.name}.{each.number}"
        output.write_file_or_stdout(f"{path}.{name}", _encode_lines(lines(each)))


def _encode_lines(lines: Iterable[str]) -> Iterator[bytes]:
    return (f"{line}\n".encode(errors="surrogateescape") for line in lines)


def _print_summary(found: Profile, binaries: Sequence[Binary], *, outside: bool) -> None:
    """Print which share of the instructions was written, and what is missing.

    `outside`: code outside of files was written, too.
    """
    written = sum(each.executed_instructions for each in binaries)
    share = written / found.instructions if found.instructions else 0.0
    names = ", ".join(each.name for each in binaries[:3])
    if len(binaries) > 3:
        names += f" and {len(binaries) - 3} more"
    others = [each for each in found.binaries if each not in binaries]
    more = ""
    if others:
        largest = sorted(others, key=lambda each: -each.executed_instructions)[:3]
        shares = ", ".join(
            f"{each.name} {each.executed_instructions / found.instructions:.1%}" for each in largest
        )
        more = f"; elsewhere: {shares}"
    if outside and found.losses.instructions_in_no_file:
        written += found.losses.instructions_in_no_file
        share = written / found.instructions
        names += " and in no file" if names else ""
    output.print_line(
        f"[ rtit profile: {written:,} of {found.instructions:,} instructions ({share:.1%}) ran in "
        f"{names or 'no file'}{more} ]",
        to=sys.stderr,
    )
    from rtit.image.source_lines import TOO_MANY_LINES

    for each in binaries:
        if not each.symbols.has_names:
            output.print_error(
                "profile", f"{each.name} has no symbols, so the names of its functions are unknown"
            )
        if each.symbols.has_incomplete_lines:
            output.print_error("profile", f"missing: source lines of {each.name}: {TOO_MANY_LINES}")
    _print_losses(found, outside=not outside)


def _print_losses(found: Profile, *, outside: bool) -> None:
    for line in found.losses.describe_losses(unmapped=outside):
        output.print_error("profile", f"missing: {line}")
