"""Writing packs (see `packed`): files as a whole, since lines, symbols and code that did not run
are asked for, too. The same trace gives the same bytes.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rtit.errors import InputError, RtitError
from rtit.image.kept import Kept, Key, Problem
from rtit.image.kernel.sources import FOLDER
from rtit.trace.pack_list import (
    FILES,
    JIT,
    KERNEL,
    LIST,
    OF_MORE,
    OF_RECORDING,
    RECORDING,
    Contents,
)
from rtit.trace.packed import ALWAYS, RATIO

if TYPE_CHECKING:
    from rtit.image import Kernel
    from rtit.trace import Trace

_PART = 1 << 20
_LEVEL = 6
_BEGINNING = (1980, 1, 1, 0, 0, 0)
_FOLDERS = 2

Parts = Callable[[], Iterator["bytes | memoryview"]]


@dataclass(frozen=True, slots=True)
class Packed:
    """What went into a pack: how many `files`, and `debug_files` of them; `missing` those whose
    code is not known.
    """

    files: int
    debug_files: int
    missing: int


def write_pack(trace: Trace, file: IO[bytes]) -> Packed:
    """Write the recording of `trace` to `file` with all files that it ran and their debug files,
    and what tells of other code. Of a copy of the kernel's memory only what ran goes in.

    Raises UnsupportedError for raw PT, InputError for a file that cannot be read, OSError.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        return _write(trace, _Writer(archive))


def _write(trace: Trace, writer: _Writer) -> Packed:
    data = trace.data
    used = trace.images.files.used()
    recording = []
    for name, parts in _recording(trace):
        recording.append(RECORDING + name)
        writer.add(RECORDING + name, parts)
    members: dict[str, str] = {}
    for kept in used.values():
        for path in filter(None, (kept.file, kept.debug)):
            if path not in members:
                members[path] = f"{FILES}{len(members)}"
                writer.add(members[path], _of_file(Path(path)))
    files: dict[Key, Kept] = {
        key: replace(
            kept,
            file=members[kept.file] if kept.file is not None else None,
            debug=members[kept.debug] if kept.debug is not None else None,
        )
        for key, kept in used.items()
    }
    more: dict[str, str] = {}
    for member, (name, parts) in _more(trace).items():
        more[member] = name
        writer.add(member, parts)
    contents = Contents(
        tuple(recording),
        data.folder is not None,
        data.modified,
        files,
        more,
        _problems(trace),
        tuple(trace.guest_processes),
    )
    listed = contents.encode()
    writer.add(LIST, lambda: iter((listed,)))
    there = [kept for kept in files.values() if kept.file is not None]
    return Packed(
        len({kept.file for kept in there}),
        len({kept.debug for kept in there if kept.debug is not None}),
        len(files) - len(there),
    )


def _kernels(trace: Trace) -> Iterator[tuple[str, Kernel]]:
    if trace.images.kernel is not None:
        yield KERNEL, trace.images.kernel
    for machine, guest in trace.images.guests.items():
        yield f"guest-{machine}/" if machine else "guest/", guest


def _more(trace: Trace) -> dict[str, tuple[str, Parts]]:
    """Names and contents, by member, of what is neither recorded nor a file that was mapped."""
    found: dict[str, tuple[str, Parts]] = {}
    beside = Path(trace.data.folder, FOLDER) if trace.data.folder is not None else None
    for whose, kernel in _kernels(trace):
        for name, path in kernel.used.files.items():
            if OF_MORE.fullmatch(whose + name) and Path(path).parent != beside:
                found[whose + name] = name, _of_file(Path(path))
        kcore = kernel.used.kcore
        if kcore is not None and Path(kcore.path).parent != beside:
            _run(trace)
            if kcore.was_asked:
                found[f"{whose}kcore"] = "kcore", kcore.part
    for number, (path, name) in enumerate(trace.images.jit_files.items()):
        found[f"{JIT}{number}/{Path(path).name}"] = name, _of_file(Path(path))
    return found


def _run(trace: Trace) -> None:
    """Go along all that ran, so that its code is asked for."""
    for stream in trace.streams:
        if not isinstance(stream.settings, RtitError):
            stream.anew().counts()


def _problems(trace: Trace) -> dict[str, tuple[Problem, ...]]:
    found = {whose: kernel.problems for whose, kernel in _kernels(trace)}
    found[JIT] = trace.images.jit_problems
    return {whose: tuple(dict.fromkeys(told)) for whose, told in found.items() if told}


def _recording(trace: Trace) -> Iterator[tuple[str, Parts]]:
    """Names and contents of the files that a recording is: of a directory the regular ones."""
    data = trace.data
    if data.folder is None:
        yield "perf.data", data.raw
        return
    top = Path(data.folder)
    for folder, folders, names in os.walk(top):
        below = Path(folder).relative_to(top)
        folders[:] = sorted(folders) if len(below.parts) + 1 < _FOLDERS else []
        for name in sorted(names):
            path = Path(folder, name)
            known = OF_RECORDING.fullmatch(f"{RECORDING}{below / name}")
            if known and path.is_file() and not path.is_symlink():
                yield str(below / name), _of_file(path)


def _of_file(path: Path) -> Parts:
    def parts() -> Iterator[bytes]:
        try:
            with path.open("rb") as source:
                while part := source.read(_PART):
                    yield part
        except OSError as error:
            message = f"cannot be packed: {error.strerror}"
            raise InputError(message, source=str(path)) from error

    return parts


class _Writer:
    """An archive that whoever opens it finds within bounds: what would shrink too well is not
    compressed.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._size = 0

    def add(self, name: str, parts: Parts) -> None:
        size = sum(map(len, parts()))
        self._size += size
        stored = self._size > ALWAYS and _deflated(parts()) * RATIO < size
        member = zipfile.ZipInfo(name, _BEGINNING)
        member.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
        member.external_attr = 0o644 << 16
        # Telling the size says whether numbers of 64 bits are needed.
        member.file_size = size
        with self._archive.open(member, "w") as copy:
            for part in parts():
                copy.write(part)


def _deflated(parts: Iterable[bytes | memoryview]) -> int:
    squeeze = zlib.compressobj(_LEVEL)
    return sum(len(squeeze.compress(part)) for part in parts) + len(squeeze.flush())
