"""Files that were mapped during the recording: found on this machine, checked, and read once.

`Files` looks for the file of a recorded path in the places that the user names, in perf's build-id
cache, in the pack that comes with the recording, and on debuginfod servers. It takes only a file
that is certainly the recorded one: by build id, else by modification time. Reads are bounded, as a
file can be anything: mostly a hole, a device, or a link out of a guest's file system.

The module also has `load_bias`, which says how far an ELF file was moved, and `CurrentVdso`, the
vDSO of this process as a file.
"""

from __future__ import annotations

import contextlib
import os
import stat
import weakref
from collections.abc import Iterator, Mapping
from collections.abc import Mapping as Table
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.errors import ImageError
from rtit.image.debug_files import find_debug_file, open_if_build_id
from rtit.image.file_symbols import FileSymbols
from rtit.image.mappings import has_file, is_in_guest
from rtit.image.problems import Problem

if TYPE_CHECKING:
    from rtit._core import Code, ElfFile
    from rtit.image.debuginfod import Debuginfod


PAGE = 4096


def open_program_file(path: str | os.PathLike[str]) -> ElfFile:
    """Return a 64-bit ELF file, for debuggers. Raises ImageError."""
    from rtit._core import ElfFile

    elf = ElfFile(path)
    if elf.bits != 64:
        raise ImageError("not a 64-bit ELF file", source=os.fspath(path))
    return elf


def load_bias(elf: ElfFile, offset: int, size: int, start: int) -> int | None:
    """Return how far a file was moved, if `size` bytes from `offset` on are mapped at `start`.

    None if the range has no code.
    """
    for code_offset, address, code_size, _, flags in elf.segments:
        begin = code_offset & -PAGE
        if flags & 1 and begin < offset + size and offset < code_offset + code_size:
            return start - offset + code_offset - address
    return None


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A recorded file that travels with the recording."""

    name: str
    """The path of the file where it was copied."""
    file: str | None = None
    """The path of the copy."""
    debug: str | None = None
    """The path of the copy of its debug file."""
    problem: Problem | None = None
    """Why the file was not copied."""
    owner: object = field(default=None, compare=False, repr=False)
    """The copies exist as long as this object; readers keep a reference."""


Key = tuple[str, str]
"""A recorded path and its recorded build id, hexadecimal, "" without one."""
PackedFiles = Mapping[Key, PackedFile]


def file_key(path: str, build_id: bytes | None) -> Key:
    """Return the key of a mapped file."""
    return path, (build_id or b"").hex()


VDSO = "[vdso]"
_MAX_VDSO = 1 << 20


class CurrentVdso:
    """The vDSO of this process, as an unnamed file."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._build_id: bytes | None = None
        content = _read_current_vdso()
        if content is None:
            return
        file = os.memfd_create("vdso", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, file)
        os.write(file, content)
        self._path = f"/proc/self/fd/{file}"
        from rtit._core import ElfFile

        try:
            self._build_id = ElfFile(self._path).build_id
        except ImageError:
            self._path = None

    def path_if_build_id_matches(self, build_id: bytes) -> str | None:
        """Return the path if the vDSO has this build id."""
        return self._path if is_same_build_id(self._build_id, build_id) else None


def _read_current_vdso() -> bytes | None:
    try:
        for line in Path("/proc/self/maps").read_bytes().splitlines():
            if line.endswith(VDSO.encode()):
                start, end = (int(number, 16) for number in line.split()[0].split(b"-"))
                with Path("/proc/self/mem").open("rb", buffering=0) as memory:
                    memory.seek(start)
                    return memory.read(min(end - start, _MAX_VDSO))
    except (OSError, ValueError):
        pass
    return None


_MAX_CODE = 1 << 30
"""Bytes of code of all files together."""
_MAX_SPARSENESS = 16
"""A file with this many times its bytes on disk is mostly holes, and not a program."""
_SMALL = 1 << 24
"""Smaller files are not checked for holes: some file systems report blocks on disk late."""
_SECTOR = 512
_PSEUDO = ("/proc", "/sys", "/sys/kernel/tracing", "/sys/kernel/debug")


def is_same_build_id(one: bytes | None, other: bytes | None) -> bool:
    """Return whether two build ids are equal. Old recordings pad them with zeros to 20 bytes."""
    return one is not None and other is not None and one.ljust(20, b"\0") == other.ljust(20, b"\0")


def describe_build_id(build_id: bytes | None) -> str:
    """Return `has build id ...` or `has no build id`."""
    return f"has build id {build_id.hex()}" if build_id else "has no build id"


class UnusableFile(Exception):  # noqa: N818 - carries a Problem to the mapping
    """A file's bytes cannot be used."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(slots=True)
class _OpenedFile:
    """A file as it was when it was first opened; `shown` is its name in messages."""

    path: str
    shown: str
    size: int
    stamp: tuple[int, int, int, int]
    modified: float
    elf: ElfFile | None
    blocks: int
    codes: dict[tuple[int, int], Code] = field(default_factory=dict)
    parts: list[tuple[int, Code]] = field(default_factory=list)
    read: int = 0
    symbols: FileSymbols | None = None
    debug: str | None = None
    packed: PackedFile | None = None


class Files:
    """Finds, checks and reads the files of recorded paths.

    * `path_map` replaces recorded paths of files or directories; the longest match counts.
    * `symfs` is a directory under which all other recorded paths are looked up, as in perf.
    * `build_ids` has build ids by recorded path, for mapping records without one.
    * `build_id_cache` is a directory like ~/.debug, searched by build id if the file itself does
      not match.
    * `recorded` is the end of the recording, in seconds since 1970: a file without a known build id
      that was modified later is refused.
    * `packed` are the files that travel with the recording; a path that is neither mapped nor under
      `symfs` is then one of these, or missing.
    * `debuginfod` downloads files that are nowhere else.
    """

    def __init__(
        self,
        *,
        symfs: str | os.PathLike[str] | None = None,
        path_map: Table[str, str] | None = None,
        build_ids: Table[str, bytes] | None = None,
        build_id_cache: str | os.PathLike[str] | None = None,
        recorded: float | None = None,
        packed: PackedFiles | None = None,
        debuginfod: Debuginfod | None = None,
    ) -> None:
        self._symfs = os.fspath(symfs) if symfs is not None else None
        self._map = sorted((path_map or {}).items(), key=lambda pair: -len(pair[0]))
        self._build_ids = dict(build_ids or {})
        self._cache = Path(build_id_cache) if build_id_cache is not None else None
        self._recorded = recorded
        self._packed = packed
        self._debuginfod = debuginfod
        self._requested: dict[tuple[str, bytes | None], _OpenedFile | Problem] = {}
        self._open: dict[str, _OpenedFile | Problem] = {}
        self._read_bytes = 0
        self._current_vdso: CurrentVdso | None = None
        self._listed: dict[str, FileSymbols] = {}

    def set_symbols(self, path: str, symbols: FileSymbols) -> None:
        """Set the functions of mappings with this path, which need not be a file."""
        self._listed[path] = symbols

    def was_requested(self, path: str, build_id: bytes | None) -> bool:
        """Return whether this file was requested before."""
        return self._request_key(path, build_id) in self._requested

    def build_id(self, path: str) -> bytes | None:
        """Return the build id of a path that is not in a mapping record."""
        return self._build_ids.get(path)

    def local_path(self, path: str) -> str:
        """Return the path on this machine for a recorded path."""
        return "".join(self._split_local_path(path))

    def _split_local_path(self, path: str) -> tuple[str, str]:
        """The same, divided into the part that the user named and the part from the recording."""
        for recorded, real in self._map:
            if path == recorded:
                return real, ""
            directory = recorded.rstrip("/") + "/"
            if path.startswith(directory):
                return real.rstrip("/") + "/", path[len(directory) :]
        if self._symfs is not None:
            return self._symfs.rstrip("/") + "/", path.lstrip("/")
        return "", path

    def path_outside_pack(self, path: str) -> str | None:
        """Return `local_path`; None for a file that is only looked for in a pack."""
        located = self.local_path(path)
        return located if self._packed is None or located != path else None

    def read_code(self, path: str, offset: int, size: int, build_id: bytes | None = None) -> Code:
        """Return `size` bytes at `offset` of a recorded file, shared between callers.

        The last page of a mapping can reach beyond the end of the file; the result ends there.
        Raises UnusableFile if the file is missing, not the recorded one, or too short.
        """
        file = self._usable_file(path, build_id)
        if (offset, size) not in file.codes:
            file.codes[offset, size] = self._read_code_within_limits(path, file, offset, size)
        return file.codes[offset, size]

    def request(self, path: str, build_id: bytes | None = None) -> None:
        """Look for a recorded file, for `requested_files`."""
        with contextlib.suppress(UnusableFile):
            self._usable_file(path, build_id)

    def symbols(self, path: str, build_id: bytes | None = None) -> FileSymbols | None:
        """Return the functions of a recorded file and its debug file, or those of `set_symbols`.

        None if the file is unusable or not an ELF file.
        """
        if path in self._listed:
            return self._listed[path]
        if not has_file(path) and path != VDSO:
            return None
        try:
            file = self._usable_file(path, build_id)
            if file.symbols is None and file.elf is not None:
                debug = self._debug_file(file, file.elf, path)
                symbols = FileSymbols(file.elf, debug, recorded_path=path)
                symbols.address(0)  # reads the table, which may be broken
                symbols.keep_alive = file.packed
                file.symbols = symbols
        except (UnusableFile, ImageError):
            return None
        return file.symbols

    def requested_files(self) -> dict[Key, PackedFile]:
        """Return every file that was requested so far, with its path and its debug file."""
        found = {}
        for (path, build_id), file in self._requested.items():
            if isinstance(file, Problem):
                found[file_key(path, build_id)] = PackedFile(path, problem=file)
                continue
            self.symbols(path, build_id)
            # The path of this process's vDSO differs each time.
            shown = path if path == VDSO else file.shown
            found[file_key(path, build_id)] = PackedFile(shown, file.path, file.debug)
        return found

    def _debug_file(self, file: _OpenedFile, elf: ElfFile, path: str) -> ElfFile | None:
        if file.packed is None:
            debug = find_debug_file(elf, path, self._symfs) or self._download_debug_file(elf)
        elif file.packed.debug is not None:
            from rtit._core import ElfFile

            debug = ElfFile(file.packed.debug)
        else:
            return None
        file.debug = str(debug.path) if debug is not None else None
        return debug

    def _download_debug_file(self, elf: ElfFile) -> ElfFile | None:
        if self._debuginfod is None or elf.build_id is None:
            return None
        path = self._debuginfod.fetch_debug_file(elf.build_id)
        return open_if_build_id(path, elf.build_id) if path is not None else None

    def _request_key(self, path: str, build_id: bytes | None) -> tuple[str, bytes | None]:
        if not build_id or not any(build_id):
            build_id = self._build_ids.get(path)
        return path, build_id

    def _usable_file(self, path: str, build_id: bytes | None) -> _OpenedFile:
        request = self._request_key(path, build_id)
        try:
            file = self._find_usable_file(*request)
        except UnusableFile as error:
            self._requested[request] = error.problem
            raise
        self._requested[request] = file
        return file

    def _vdso_paths(self, build_id: bytes | None) -> Iterator[str]:
        """Yield possible paths of the vDSO: a mapped one, perf's cache, this process's."""
        with_name = self.local_path(VDSO)
        if any(recorded == VDSO for recorded, _ in self._map):
            yield with_name
        if build_id is None:
            return
        if self._cache is not None:
            name = build_id.hex()
            yield str(self._cache / ".build-id" / name[:2] / name[2:] / "vdso")
        if self._current_vdso is None:
            self._current_vdso = CurrentVdso()
        current = self._current_vdso.path_if_build_id_matches(build_id)
        if current is not None:
            yield current

    def _find_usable_file(self, path: str, build_id: bytes | None) -> _OpenedFile:
        packed = None
        if self._packed is not None:
            packed = self._packed.get(file_key(path, build_id)) or self._packed.get(
                file_key(path, None)
            )
        first: Problem | None = None
        for real in self._candidate_paths(path, build_id, packed):
            of_pack = packed is not None and real == packed.file
            if (
                is_in_guest(path)
                and real == self.local_path(path)
                and _may_lead_out_of_folder(*self._split_local_path(path))
            ):
                message = "a link, or a path with ..: it may lead out of the guest"
                first = first or Problem("unreadable", path, message)
                continue
            file = self._open_once(path, real, packed if of_pack else None)
            is_recorded_path = real == path
            if isinstance(file, Problem):
                problem: Problem | None = replace(file, path=path)
            else:
                problem = self._check_build_id_and_date(path, file, build_id, is_recorded_path)
                if problem is None:
                    return file
            first = first or problem
        first = first or (packed.problem if packed is not None else None)
        raise UnusableFile(first or Problem("missing", path, "the file does not exist"))

    def _candidate_paths(
        self, path: str, build_id: bytes | None, packed: PackedFile | None
    ) -> Iterator[str]:
        """Yield possible paths of a file, the preferred ones first."""
        if path == VDSO:
            yield from self._vdso_paths(build_id)
        else:
            yield from self._local_paths(path, build_id)
        if packed is not None and packed.file is not None:
            yield packed.file
        if self._debuginfod is not None and build_id and path != VDSO:
            fetched = self._debuginfod.fetch_executable(build_id)
            if fetched is not None:
                yield fetched

    def _local_paths(self, path: str, build_id: bytes | None) -> Iterator[str]:
        located = self.path_outside_pack(path)
        if located is not None and not (located == path and is_in_guest(path)):
            yield located
        if self._cache is not None and build_id:
            name = build_id.hex()
            yield str(self._cache / ".build-id" / name[:2] / name[2:] / "elf")

    def _open_once(self, path: str, real: str, packed: PackedFile | None) -> _OpenedFile | Problem:
        if real not in self._open:
            self._open[real] = _open_candidate_file(path, real, packed)
        return self._open[real]

    def _check_build_id_and_date(
        self, path: str, file: _OpenedFile, build_id: bytes | None, is_recorded_path: bool
    ) -> Problem | None:
        if build_id:
            found = file.elf.build_id if file.elf is not None else None
            if is_same_build_id(found, build_id):
                return None
            message = f"{file.shown} {describe_build_id(found)}, recorded was {build_id.hex()}"
            return Problem("changed", path, message, found.hex() if found else None)
        if is_recorded_path and self._recorded is not None and file.modified > self._recorded:
            return Problem("changed", path, "the file was modified after the recording")
        return None

    def _read_code_within_limits(
        self, path: str, file: _OpenedFile, offset: int, size: int
    ) -> Code:
        if offset + size > -(-file.size // PAGE) * PAGE:
            message = f"{file.shown} ends before the mapping does, at {file.size:#x}"
            raise UnusableFile(Problem("truncated", path, message, file.size))
        wanted = max(0, min(size, file.size - offset))
        for start, code in file.parts:
            if start <= offset and offset + wanted <= start + len(code):
                return code.slice(offset - start, wanted)
        # Overlapping parts could be many times the file; the whole file is read instead.
        start, size = (offset, wanted) if file.read + wanted <= file.size else (0, file.size)
        if self._read_bytes + size > _MAX_CODE:
            message = f"the code of all files together has more than {_MAX_CODE:,} bytes"
            raise UnusableFile(Problem("unreadable", path, message, size))
        if size > max(_SMALL, file.blocks * _SECTOR * _MAX_SPARSENESS):
            message = f"{file.shown} is mostly holes: no code is read from it"
            raise UnusableFile(Problem("unreadable", path, message, size))
        code = _read_unchanged_file(path, file, start, size)
        self._read_bytes += size
        file.read += size
        file.parts.append((start, code))
        return code.slice(offset - start, wanted)


def _read_unchanged_file(path: str, file: _OpenedFile, offset: int, wanted: int) -> Code:
    from rtit._core import Code

    try:
        with Path(file.path).open("rb", buffering=0) as source:
            if _file_change_stamp(os.fstat(source.fileno())) != file.stamp:
                raise UnusableFile(Problem("changed", path, f"{file.path} changed while in use"))
            source.seek(offset)
            data = source.read(wanted)
            while len(data) < wanted and (more := source.read(wanted - len(data))):
                data += more
    except OSError as error:
        raise UnusableFile(Problem("unreadable", path, f"{file.path}: {error.strerror}")) from error
    if len(data) < wanted:
        message = f"{file.path} became shorter while it was read"
        raise UnusableFile(Problem("truncated", path, message, offset + len(data)))
    return Code(data)


def _file_change_stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _may_lead_out_of_folder(folder: str, path: str) -> bool:
    """Return whether `path` below `folder`, which the user named, can leave the folder.

    The owner of a guest can put any link into its file system and any path into its records.
    """
    there = os.path.realpath(folder).rstrip("/") + "/" + path
    linked = bool(path) and os.path.realpath(folder + path) != os.path.normpath(there)
    return linked or ".." in path.split("/")


def _is_pseudo_file(status: os.stat_result) -> bool:
    for folder in map(Path, _PSEUDO):
        try:
            # If nothing is mounted there, the folder has the device of its file system.
            if status.st_dev == folder.stat().st_dev and folder.is_mount():
                return True
        except OSError:
            continue
    return False


def _open_candidate_file(path: str, real: str, packed: PackedFile | None) -> _OpenedFile | Problem:
    from rtit._core import ElfFile

    name = "the file" if real == path else real
    try:
        status = Path(real).stat()
        if not stat.S_ISREG(status.st_mode):
            return Problem("unreadable", path, f"{name} is not a regular file")
        if not status.st_size or _is_pseudo_file(status):
            # Files of /proc and similar have no size, and reading some of them blocks.
            return Problem("unreadable", path, f"{name} is empty, or no file on a disk")
        with Path(real).open("rb") as source:
            magic = source.read(4)
        elf = ElfFile(real) if magic == b"\x7fELF" else None
    except FileNotFoundError:
        return Problem("missing", path, f"{name} does not exist")
    except OSError as error:
        return Problem("unreadable", path, f"{real}: {error.strerror}")
    except ValueError as error:  # a path with a NUL byte
        return Problem("unreadable", path, str(error))
    except ImageError as error:
        return Problem("unreadable", path, str(error))
    shown = real if packed is None else packed.name
    place = (real, shown, status.st_size, _file_change_stamp(status), status.st_mtime)
    return _OpenedFile(*place, elf, status.st_blocks, packed=packed)
