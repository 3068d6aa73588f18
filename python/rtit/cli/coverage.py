"""`rtit coverage FILE...`: which code ran, of programs as they are."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rtit import __version__
from rtit.cli import out
from rtit.cli.bare import add_bare_code, add_raw, is_bare
from rtit.cli.gaps import EXIT_CODE
from rtit.cli.inputs import add_images, add_places, add_threads, opened
from rtit.cli.selecting import add_streams, selection
from rtit.cli.watching import watched
from rtit.cli.written import add_dso, add_output, write
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.coverage.gather import Code, Coverage

_FORMATS = ("text", "html", "lcov", "cobertura", "drcov", "afl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="recordings, put together; default: perf.data"
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="text",
        help="text (default), html (one page), lcov (genhtml reads it), cobertura (XML), drcov "
        "(blocks), afl (a map of edges)",
    )
    add_output(parser)
    add_dso(parser, "of the program")
    parser.add_argument(
        "--diff-from",
        action="append",
        default=[],
        metavar="BASE",
        help="only what ran in none of these recordings; may be repeated",
    )
    parser.epilog = (
        "A line ran as often as the most frequent of the places where its code begins; a branch is "
        "a conditional\nbranch instruction, with two ways out.\n"
    )
    add_streams(parser)
    add_images(parser)
    add_threads(parser)
    add_places(parser)
    add_bare_code(add_raw(parser))


def run(arguments: argparse.Namespace) -> int:
    """Write the coverage; 3 if something could not be decoded."""
    bare = is_bare(arguments)
    if bare and arguments.files:
        raise UsageError(f"two files given: {arguments.files[0]} and --raw {arguments.raw}")
    found = _of(arguments, [None] if bare else arguments.files or ["perf.data"])
    if arguments.diff_from:
        found = found.without(_of(arguments, arguments.diff_from))
    found.codes = _chosen(found, arguments.dso)
    write(arguments.output, _parts(arguments.format, found))
    for line in found.losses:
        out.complain("coverage", f"missing: {line}")
    return EXIT_CODE if found.has_gaps else 0


def _of(arguments: argparse.Namespace, names: Iterable[str | None]) -> Coverage:
    from rtit.coverage import Coverage
    from rtit.profile.gather import profile

    result = Coverage()
    for name in names:
        arguments.file, arguments.input = name, None
        with ExitStack() as stack:
            trace = stack.enter_context(opened(arguments))
            streams = trace.by_thread(selection(arguments))
            stack.enter_context(watched("coverage", streams, prints=False))
            result.add(profile(trace, streams), trace.path)
    return result


def _chosen(found: Coverage, names: list[str]) -> list[Code]:
    if "all" in names:
        return found.codes
    for name in names:
        if not any(name in (each.path, Path(each.path).name) for each in found.codes):
            known = ", ".join(Path(each.path).name for each in found.codes) or "none"
            raise UsageError(f"no code ran in a file {name}; there is: {known}")
    wanted = {*names} or found.programs
    return [each for each in found.codes if wanted & {each.path, Path(each.path).name}]


def _parts(kind: str, found: Coverage) -> Iterable[bytes]:
    from rtit.coverage import sources
    from rtit.coverage.afl import afl
    from rtit.coverage.cobertura import cobertura
    from rtit.coverage.drcov import drcov
    from rtit.coverage.html import html
    from rtit.coverage.lcov import lcov
    from rtit.coverage.text import text
    from rtit.readable import readable

    if kind == "drcov":
        return [drcov(found.codes)]
    if kind == "afl":
        return [afl(found.codes)]
    files = sources(found)
    if not files and kind != "text":
        out.complain("coverage", "no file has lines of source in its DWARF")
    if kind == "cobertura":
        return _encoded(cobertura(files, f"rtit {__version__}"))
    writers = {"lcov": lcov, "html": html}
    lines = writers[kind](files) if kind in writers else map(readable, text(found, files))
    return _encoded(lines)


def _encoded(lines: Iterable[str]) -> Iterator[bytes]:
    return (f"{line}\n".encode(errors="replace") for line in lines)
