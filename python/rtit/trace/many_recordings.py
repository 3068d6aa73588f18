"""Many recordings: finding them in folders and by patterns, and opening one after the other, or
many at a time in other processes.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rtit.errors import InputError, MissingRecordingError, PerfDataError, RtitError, UsageError
from rtit.remote_files import display_name, find_remote_recordings, is_url, local_path
from rtit.trace.trace import Trace

if TYPE_CHECKING:
    from distributed import Client

Result = TypeVar("Result")
_MAGIC = b"PERFILE2"
_SUFFIXES = (".data", ".rtit.zip")
_MAIN_FILE = "data"
"""The file with the header in a recording of `perf record --threads`, which is a folder."""


def find_recordings(names: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the names of the recordings that `names` stand for: files, folders and patterns.

    A folder stands for all recordings below it, in the order of their paths: files that begin as
    perf.data files, and those with a name that ends in .data or .rtit.zip. A pattern has `*`, `?`,
    `[...]` or `**`, as for `glob.glob`. Any of them can be a URL, which stands for URLs. Raises
    MissingRecordingError for a name without a file, and PerfDataError for a folder without
    recordings.
    """
    found: list[str] = []
    for each in names:
        if is_url(each):
            found += find_remote_recordings(os.fspath(each))
            continue
        name = local_path(os.fspath(each))
        path = Path(name)
        if name != "-" and not os.path.lexists(name):
            matching = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - also of absolute paths
            if not matching:
                raise MissingRecordingError(name)
            # the files in a folder that ** matches are among the matches, too
            found += (one for one in matching if _is_recording(Path(one)) or Path(one).is_file())
        elif path.is_dir() and not _is_recording(path):
            below = [*_recordings_below(path)]
            if not below:
                raise PerfDataError("no recording is in this folder", source=name)
            found += below
        else:
            found.append(name)
    return found


def _recordings_below(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if _is_recording(path):
            yield str(path)
        elif path.is_dir() and not path.is_symlink():
            yield from _recordings_below(path)


def _is_recording(path: Path) -> bool:
    if path.is_dir():
        return _begins_as_recording(path / _MAIN_FILE)
    return path.name.endswith(_SUFFIXES) or _begins_as_recording(path)


def _begins_as_recording(path: Path) -> bool:
    try:
        if not path.is_file():  # a pipe would wait for its writer
            return False
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def open_many(
    names: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], **options: Any
) -> Iterator[tuple[str, Trace | RtitError]]:
    """Iterate over recordings: the path of each, and its `Trace`, or the error if it has none.

    `names` are files, folders, patterns and URLs, as for `rtit coverage`. The path of a recording
    at a URL is the URL without password and token. `options` are those of `Trace`. A trace is
    closed when the next one is opened. Raises MissingRecordingError for a name without a file,
    PerfDataError for a folder without recordings, and UsageError for wrong options.
    """
    for name in find_recordings([names] if isinstance(names, str | os.PathLike) else names):
        trace: Trace | RtitError
        path = display_name(name)
        try:
            trace = Trace(name, **options)
        except InputError as error:
            yield path, error
            continue
        except OSError as error:
            yield path, InputError(error.strerror or str(error), source=path)
            continue
        with trace:
            yield path, trace


def map_many(
    function: Callable[[Trace], Result],
    names: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    jobs: int = 0,
    client: Client | None = None,
    **options: Any,
) -> Iterator[tuple[str, Result | RtitError]]:
    """Iterate over recordings: the path of each, and what `function` returns for its `Trace`, or
    the error if it could not be read.

    `function` runs in `jobs` processes (0: one for each CPU, at most 8), or on the Dask cluster of
    `client`, whose workers read the files by the same paths. The order is that of `open_many`.
    Results are pickled. `names`, `options` and errors are those of `open_many`; also raises what
    `function` raises, but for InputError and OSError, which belong to the recording.
    """
    from rtit.worker_processes import default_processes, run_in_order

    if not 0 <= jobs <= 255:
        raise UsageError(f"jobs is {jobs}: it must be 0 to 255")
    paths = find_recordings([names] if isinstance(names, str | os.PathLike) else names)
    options = {"jobs": 1, **options}
    work = partial(_apply_to_recording, function, options)
    items = paths if client is None else [_absolute_path(path) for path in paths]
    processes = min(jobs or default_processes(), len(paths))
    shown = map(display_name, paths)
    yield from zip(shown, run_in_order(work, items, processes, client), strict=True)


def _absolute_path(name: str) -> str:
    return name if is_url(name) else str(Path(name).absolute())


def _apply_to_recording(
    function: Callable[[Trace], Result], options: dict[str, Any], path: str
) -> Result | RtitError:
    try:
        with Trace(path, **options) as trace:
            return function(trace)
    except InputError as error:
        return error
    except OSError as error:
        return InputError(error.strerror or str(error), source=display_name(path))
