"""The traced part of a run: `--start-at` and `--stop-at`.

    FUNCTION[@FILE] | N | +N

An edge is the first execution of a function, or the N'th retired instruction of all threads
together. +N, for the stop only, counts from the start. Outside of the window TraceEn is 0, so the
trace has nothing of it. There is one window, and each edge is passed once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from os import PathLike

from rtit.errors import UsageError

_COUNT = re.compile(r"(\+?)([0-9][0-9_]*)")
_EDGE_FORM = re.compile(r"#(?:[gG]|[0-9]+)$")
_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class WindowEdge:
    """Where the window begins or ends.

    A function: `path` is its file's real path, `offset` and `size` are in bytes of the file. Else
    `count` instructions, since the start if `relative`. `text` is what the user wrote.
    """

    text: str
    path: str | None = None
    offset: int = 0
    size: int = 0
    count: int = 0
    relative: bool = False


@dataclass(frozen=True, slots=True)
class RecordWindow:
    """Both edges. Without a start tracing begins, and without a stop it ends, with the program."""

    start: WindowEdge | None = None
    stop: WindowEdge | None = None

    def __bool__(self) -> bool:
        return self.start is not None or self.stop is not None

    def describe_missed(self, passed: int) -> list[str]:
        """Return warnings for the edges that were not reached; `passed`: how many were."""
        warnings = []
        if self.start is not None and passed < 1:
            warnings.append(f"{self.start.text} (--start-at) was not reached: nothing is traced")
        elif self.stop is not None and passed < 2:
            warnings.append(f"{self.stop.text} (--stop-at) was not reached: the trace has no end")
        return warnings


def parse_window(
    start: str | None, stop: str | None, *, program: str | PathLike[str] | None = None
) -> RecordWindow:
    """Return the window of these options; `program` is the file of functions without a file.

    Raises UsageError for syntax errors, for missing or ambiguous functions, and for a stop that is
    not after the start; ImageError for a file that cannot be read.
    """
    first = _parse_edge("--start-at", start, program) if start is not None else None
    last = _parse_edge("--stop-at", stop, program) if stop is not None else None
    if first is not None and first.relative:
        raise UsageError(
            f"--start-at {start}: +N counts from the start, so only --stop-at takes it"
        )
    if last is not None and last.path is None:
        least = first.count if first is not None and not last.relative else 0
        if last.count <= least:
            raise UsageError(f"--stop-at {stop} leaves nothing to trace: it must be over {least}")
    return RecordWindow(first, last)


def _parse_edge(option: str, text: str, program: str | PathLike[str] | None) -> WindowEdge:
    number = _COUNT.fullmatch(text.strip())
    if number is not None:
        count = int(number[2].replace("_", ""))
        if count >= _LIMIT:
            raise UsageError(f"{option} {text}: no program executes so many instructions")
        return WindowEdge(text, count=count, relative=bool(number[1]))
    name, at, file = (part.strip() for part in text.rpartition("@"))
    if not at or file == "plt":
        name, at, file = text.strip(), "", ""
    if not name or name[0] in "+-0123456789":
        raise UsageError(
            f"{option} {text}: neither a number of instructions nor a function (FUNCTION[@FILE])"
        )
    from rtit.capture.filters import parse_filters

    try:
        number = _EDGE_FORM.search(name)
        selection = number[0] if number else ""
        bare = name.removesuffix(selection).rstrip()
        filter_text = f'filter "{bare}" {selection}' + (f" @ {file}" if at else "")
        [found] = parse_filters(filter_text, program=program)
    except UsageError as error:
        raise UsageError(f"{option} {text}: {_shorten_filter_error(error)}") from error
    return WindowEdge(text, path=found.path, offset=found.offset, size=found.size)


def _shorten_filter_error(error: UsageError) -> str:
    """Return the error without the filter's text and syntax."""
    text = str(error)
    if text.startswith("filter "):
        text = text.partition(": ")[2].partition("; form: ")[0]
    return text
