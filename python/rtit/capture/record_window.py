"""From where to where a recording is traced: `--start-at` and `--stop-at`.

    FUNCTION[@FILE] | N | +N

An edge is the first byte of a function, before its first execution, or the N'th retired instruction
of all threads together; +N, for the stop alone, counts from the start. What happens outside has
TraceEn=0: nothing of it is in the trace. There is one window; both edges are passed once.
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
    """Both edges; without a start a recording begins at once, without a stop it lasts to the
    end.
    """

    start: WindowEdge | None = None
    stop: WindowEdge | None = None

    def __bool__(self) -> bool:
        return self.start is not None or self.stop is not None

    def missed(self, passed: int) -> list[str]:
        """Warnings for the edges that were never reached; `passed`: how many were."""
        warnings = []
        if self.start is not None and passed < 1:
            warnings.append(f"{self.start.text} (--start-at) was not reached: nothing is traced")
        elif self.stop is not None and passed < 2:
            warnings.append(f"{self.stop.text} (--stop-at) was not reached: the trace has no end")
        return warnings


def parse_window(
    start: str | None, stop: str | None, *, program: str | PathLike[str] | None = None
) -> RecordWindow:
    """The window of these options; `program` is the file of functions that name none.

    Raises UsageError for what is neither a function nor a number, for a function that is not there
    or not unique, and for a stop that is not after the start; ImageError for a file that cannot be
    read.
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
        which = number[0] if number else ""
        bare = name.removesuffix(which).rstrip()
        wanted = f'filter "{bare}" {which}' + (f" @ {file}" if at else "")
        [found] = parse_filters(wanted, program=program)
    except UsageError as error:
        raise UsageError(f"{option} {text}: {_shorten_filter_error(error)}") from error
    return WindowEdge(text, path=found.path, offset=found.offset, size=found.size)


def _shorten_filter_error(error: UsageError) -> str:
    """Without what a user of filters would want to know."""
    text = str(error)
    if text.startswith("filter "):
        text = text.partition(": ")[2].partition("; form: ")[0]
    return text
