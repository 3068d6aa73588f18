"""Writes packs: see `packs` for what is in one.

Whole files are packed, since lines, symbols and code that did not run are needed too. The same
trace gives the same bytes.
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
from rtit.image.kernel.kernel_files import FOLDER
from rtit.image.mapped_files import Key, PackedFile
from rtit.image.problems import Problem
from rtit.trace.recording.packs import (
    EXTRA_MEMBER,
    FILES,
    JIT,
    KERNEL,
    MANIFEST,
    MAX_SIZE_RATIO,
    MIN_SIZE_LIMIT,
    RECORDING,
    RECORDING_MEMBER,
    PackManifest,
)

if TYPE_CHECKING:
    from rtit.image.kernel.kernel import Kernel
    from rtit.trace import Trace


_COPY_CHUNK = 1 << 20
_LEVEL = 6
_MEMBER_TIME = (1980, 1, 1, 0, 0, 0)
_MAX_FOLDER_DEPTH = 2

ChunkReader = Callable[[], Iterator["bytes | memoryview"]]


@dataclass(frozen=True, slots=True)
class PackSummary:
    """The number of `files` and `debug_files` in a pack, and of `missing` files without code."""

    files: int
    debug_files: int
    missing: int


def write_pack(trace: Trace, file: IO[bytes]) -> PackSummary:
    """Write the recording of `trace` to `file`, with all executed files, their debug files, and
    files of the kernel and of JIT code. Of a copy of kernel memory only executed code is packed.

    Raises UnsupportedError for raw PT, InputError for a file that cannot be read, OSError.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        return _write_members(trace, _LimitedZipWriter(archive))


def _write_members(trace: Trace, writer: _LimitedZipWriter) -> PackSummary:
    data = trace.data
    used = trace.images.files.requested_files()
    recording = []
    for name, parts in _recording_files(trace):
        recording.append(RECORDING + name)
        writer.add_member(RECORDING + name, parts)
    members: dict[str, str] = {}
    for packed in used.values():
        for path in filter(None, (packed.file, packed.debug)):
            if path not in members:
                members[path] = f"{FILES}{len(members)}"
                writer.add_member(members[path], _read_file(Path(path)))
    files: dict[Key, PackedFile] = {
        key: replace(
            packed,
            file=members[packed.file] if packed.file is not None else None,
            debug=members[packed.debug] if packed.debug is not None else None,
        )
        for key, packed in used.items()
    }
    more: dict[str, str] = {}
    for member, (name, parts) in _extra_members(trace).items():
        more[member] = name
        writer.add_member(member, parts)
    contents = PackManifest(
        tuple(recording),
        data.folder is not None,
        data.modified,
        files,
        more,
        _problems_by_folder(trace),
        tuple(trace.guest_processes),
    )
    listed = contents.encode_manifest()
    writer.add_member(MANIFEST, lambda: iter((listed,)))
    found = [packed for packed in files.values() if packed.file is not None]
    return PackSummary(
        len({packed.file for packed in found}),
        len({packed.debug for packed in found if packed.debug is not None}),
        len(files) - len(found),
    )


def _kernel_folders(trace: Trace) -> Iterator[tuple[str, Kernel]]:
    if trace.images.kernel is not None:
        yield KERNEL, trace.images.kernel
    for machine, guest in trace.images.guests.items():
        yield f"guest-{machine}/" if machine else "guest/", guest


def _extra_members(trace: Trace) -> dict[str, tuple[str, ChunkReader]]:
    """Original name and contents of each member for kernels and JIT code."""
    found: dict[str, tuple[str, ChunkReader]] = {}
    recording_folder = Path(trace.data.folder, FOLDER) if trace.data.folder is not None else None
    for folder, kernel in _kernel_folders(trace):
        for name, path in kernel.used.files.items():
            if EXTRA_MEMBER.fullmatch(folder + name) and Path(path).parent != recording_folder:
                found[folder + name] = name, _read_file(Path(path))
        kcore = kernel.used.kcore
        if kcore is not None and Path(kcore.path).parent != recording_folder:
            _decode_everything(trace)
            if kcore.was_read:
                found[f"{folder}kcore"] = "kcore", kcore.read_pages_core
    for number, (path, name) in enumerate(trace.images.jit_files.items()):
        found[f"{JIT}{number}/{Path(path).name}"] = name, _read_file(Path(path))
    return found


def _decode_everything(trace: Trace) -> None:
    """Decode everything, so that all executed kernel code is requested."""
    for stream in trace.streams:
        if not isinstance(stream.settings, RtitError):
            stream.copy_with().counts()


def _problems_by_folder(trace: Trace) -> dict[str, tuple[Problem, ...]]:
    found = {folder: kernel.problems for folder, kernel in _kernel_folders(trace)}
    found[JIT] = trace.images.jit_problems
    return {
        folder: tuple(dict.fromkeys(problems)) for folder, problems in found.items() if problems
    }


def _recording_files(trace: Trace) -> Iterator[tuple[str, ChunkReader]]:
    """Name and contents of each file of the recording; of a directory, of regular files."""
    data = trace.data
    if data.folder is None:
        yield "perf.data", data.blocks
        return
    top = Path(data.folder)
    for folder, folders, names in os.walk(top):
        below = Path(folder).relative_to(top)
        folders[:] = sorted(folders) if len(below.parts) + 1 < _MAX_FOLDER_DEPTH else []
        for name in sorted(names):
            path = Path(folder, name)
            known = RECORDING_MEMBER.fullmatch(f"{RECORDING}{below / name}")
            if known and path.is_file() and not path.is_symlink():
                yield str(below / name), _read_file(path)


def _read_file(path: Path) -> ChunkReader:
    def parts() -> Iterator[bytes]:
        try:
            with path.open("rb") as source:
                while part := source.read(_COPY_CHUNK):
                    yield part
        except OSError as error:
            message = f"cannot be packed: {error.strerror}"
            raise InputError(message, source=str(path)) from error

    return parts


class _LimitedZipWriter:
    """Writes an archive within the limits of `open_pack`: a member that would compress too well is
    stored.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._size = 0

    def add_member(self, name: str, parts: ChunkReader) -> None:
        size = sum(map(len, parts()))
        self._size += size
        stored = self._size > MIN_SIZE_LIMIT and _deflated_size(parts()) * MAX_SIZE_RATIO < size
        member = zipfile.ZipInfo(name, _MEMBER_TIME)
        member.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
        member.external_attr = 0o644 << 16
        # With the size zipfile knows whether it needs 64-bit fields.
        member.file_size = size
        with self._archive.open(member, "w") as copy:
            for part in parts():
                copy.write(part)


def _deflated_size(parts: Iterable[bytes | memoryview]) -> int:
    squeeze = zlib.compressobj(_LEVEL)
    return sum(len(squeeze.compress(part)) for part in parts) + len(squeeze.flush())
