"""`rtit pack FILE`: puts a recording and the files it needs into one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from rtit.cli import options, output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.parser import CommandParser
from rtit.errors import UsageError

_EPILOG = """Examples:
  rtit pack perf.data -o crash.rtit.zip
  rtit report crash.rtit.zip                      # on any machine, without other files

A pack has complete copies of the programs and libraries that ran, of their debug files, of kernel
modules, and of jit-PID.dump and perf-PID.map. A pack has only the pages of /proc/kcore that contain
code that ran. Check the content of a pack before you share it.
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    parser.add_argument_group("Output").add_argument(
        "-o", "--output", metavar="FILE", help="The pack to write (default: FILE.rtit.zip)"
    )
    options.add_image_options(parser)
    parser.add_general_options(rare="the options for JIT code, kernels and virtual machines")


def run(arguments: argparse.Namespace) -> int:
    """Write the pack; return 3 if something is missing in it."""
    from rtit.trace.recording.pack_writer import write_pack

    if arguments.output == "-":
        raise UsageError("-o -: a pack cannot go to standard output; give a file name")
    with options.open_trace(arguments) as trace:
        if arguments.output is None and not Path(trace.path).exists():
            raise UsageError(f"{trace.path} is not a local file: give -o FILE")
        gaps = IncompleteReport("pack", trace)
        path = arguments.output or f"{trace.path.rstrip('/')}.rtit.zip"
        with output.atomic_file(path, private=True) as file:
            packed = write_pack(trace, file)
        gaps.print_image_problems()
        code = gaps.exit_code()
    files = f"{packed.files:,} files, {packed.debug_files:,} debug files"
    missing = f"; {packed.missing:,} files are missing" if packed.missing else ""
    output.print_line(
        f"{path}: {Path(path).stat().st_size:,} bytes: the recording, {files}{missing}"
    )
    return code
