"""`rtit pack FILE`: a recording with everything that it needs, for another machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from rtit.cli import out
from rtit.cli.gaps import Gaps
from rtit.cli.inputs import add_file, add_images, opened
from rtit.cli.written import whole
from rtit.errors import UsageError

_EPILOG = """example:
  rtit pack perf.data -o crash.rtit.zip
  rtit report crash.rtit.zip         (on any machine: no file but this one is needed)

The files that ran go in as a whole, with their debug files: code, symbols and lines of source are
then those of the machine where it was packed; so do a kernel's own files, its modules that are in
the recording, and what tells of code that programs made (jit-PID.dump, perf-PID.map). Of a copy of
the kernel's memory (--kcore) the pages that ran. Look at what is in it before it is given away.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = _EPILOG
    add_file(parser)
    add_images(parser)
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="the pack to write (default: FILE.rtit.zip)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the pack; 3 if something is not in it."""
    from rtit.trace.packing import write_pack

    if arguments.output == "-":
        raise UsageError("a pack is a file: give -o a name")
    with opened(arguments) as trace:
        if arguments.output is None and not Path(trace.path).exists():
            raise UsageError(f"a pack of {trace.path} has no name: give -o OUT")
        gaps = Gaps("pack", trace)
        output = arguments.output or f"{trace.path.rstrip('/')}.rtit.zip"
        with whole(output, private=True) as file:
            packed = write_pack(trace, file)
        gaps.images()
        code = gaps.exit_code()
    files = f"{packed.files:,} files, {packed.debug_files:,} debug files"
    missing = f"; {packed.missing:,} files are missing" if packed.missing else ""
    out.line(f"{output}: {Path(output).stat().st_size:,} bytes: the recording, {files}{missing}")
    return code
