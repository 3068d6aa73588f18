"""What an ELF file says of how it is loaded: more than the code, as a debugger needs it.

Files that travel with a recording, instead of those of the machine that it is looked at on.

The vdso: code of the kernel in each process, an ELF file without a file.

Files that were mapped while recording: found, checked, read once.
"""

from __future__ import annotations

import os
import stat
import struct
import weakref
from collections.abc import Iterator, Mapping
from collections.abc import Mapping as Table
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rtit.errors import ImageError
from rtit.image.debug_files import find_debug_file, open_if_build_id
from rtit.image.file_symbols import FileSymbols
from rtit.image.mappings import has_file, is_in_guest

if TYPE_CHECKING:
    from rtit._core import Code, ElfFile
    from rtit.image.debug_files import Debuginfod


PAGE = 4096
_HEADER = struct.Struct("<4sBBB9xHHIQQQIHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_MAX_SEGMENTS = 65536 // _SEGMENT.size
"""The kernel takes no more than 64 KiB of program headers."""
_LOAD, _DYNAMIC, _INTERP = 1, 2, 3
_EXECUTABLE_KIND = 2
_FLAGS_1, _PIE = 0x6FFFFFFB, 0x08000000
_MOST_DYNAMIC = 1 << 16


@dataclass(frozen=True, slots=True)
class ElfSegment:
    """`size` bytes of the file from `offset` on are at `address`, and zeros behind them up to
    `memory` bytes. `flags`: 1 executable, 2 writable, 4 readable.
    """

    offset: int
    address: int
    size: int
    memory: int
    flags: int


@dataclass(frozen=True, slots=True)
class ElfHeaders:
    """Addresses are those that the file gives. `table` is where its program headers are loaded, 0
    if they are not, `count` how many of 56 bytes each; `dynamic` where its dynamic section is, 0
    without one. `is_program`: it says itself that it is one and no library; `has_loader`: it names
    an interpreter.
    """

    entry: int
    table: int
    count: int
    dynamic: int
    is_program: bool
    has_loader: bool
    segments: tuple[ElfSegment, ...]

    def bias(self, offset: int, size: int, start: int) -> int | None:
        """By how much it was moved, if `size` bytes of the file from `offset` on, with code in
        them, are at `start`; None if no code of it is there.
        """
        for each in self.segments:
            begin = each.offset & -PAGE
            if each.flags & 1 and begin < offset + size and offset < each.offset + each.size:
                return start - offset + each.offset - each.address
        return None


def read_elf_headers(path: str | os.PathLike[str]) -> ElfHeaders:
    """Those of a 64-bit little-endian file. Raises ImageError, OSError."""
    source = os.fspath(path)
    with Path(path).open("rb") as file:

        def part(offset: int, size: int) -> bytes:
            if offset >= os.fstat(file.fileno()).st_size:
                return b""
            file.seek(offset)
            return file.read(size)

        head = part(0, _HEADER.size)
        if len(head) < _HEADER.size or head[:6] != b"\x7fELF\2\1":
            raise ImageError("no 64-bit little-endian ELF file", source=source)
        (*_, kind, _machine, _version, entry, at, _, _, _, size, count) = _HEADER.unpack(head)
        if size != _SEGMENT.size or count > _MAX_SEGMENTS:
            raise ImageError("bad program headers", source=source, offset=54, value=count)
        table = part(at, count * size)
        if len(table) < count * size:
            raise ImageError("program headers that are cut off", source=source, offset=at)
        rows = list(_SEGMENT.iter_unpack(table))
        segments = tuple(
            ElfSegment(offset, address, length, memory, flags)
            for kind_, flags, offset, address, _, length, memory, _ in rows
            if kind_ == _LOAD
        )
        dynamic = next((row for row in rows if row[0] == _DYNAMIC), None)
        flags_1 = 0
        if dynamic is not None:
            entries = part(dynamic[2], min(dynamic[5], _MOST_DYNAMIC))
            pairs = struct.iter_unpack("<QQ", entries[: len(entries) & -16])
            flags_1 = next((value for tag, value in pairs if tag == _FLAGS_1), 0)
    loaded = [
        each.address + at - each.offset
        for each in segments
        if each.offset <= at and at + count * size <= each.offset + each.size
    ]
    return ElfHeaders(
        entry=entry,
        table=loaded[0] if loaded else 0,
        count=count,
        dynamic=dynamic[3] if dynamic is not None else 0,
        is_program=kind == _EXECUTABLE_KIND or bool(flags_1 & _PIE),
        has_loader=any(row[0] == _INTERP for row in rows),
        segments=segments,
    )


Kind = Literal["missing", "changed", "truncated", "unreadable"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the bytes of a mapped file are not known.

    `path` is the recorded path, `message` one sentence, `value` the bad value (a build id, a size
    in bytes) or None.
    """

    kind: Kind
    path: str
    message: str
    value: str | int | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A recorded file: `file` is its copy and `debug` that of its debug file, each None if there is
    none. `name` is what the file was called where it was copied, `problem` why it was not. The
    copies are there as long as `owner` is, which is kept with whatever may read in them later.
    """

    name: str
    file: str | None = None
    debug: str | None = None
    problem: Problem | None = None
    owner: object = field(default=None, compare=False, repr=False)


Key = tuple[str, str]
"""A recorded path, and the build id that the recording has for it, hexadecimal, "" without one."""
PackedFiles = Mapping[Key, PackedFile]


def key(path: str, build_id: bytes | None) -> Key:
    """What a mapped file is found by."""
    return path, (build_id or b"").hex()


VDSO = "[vdso]"
_MOST = 1 << 20


class CurrentVdso:
    """That of this process, as a file without a name."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._build_id: bytes | None = None
        content = _own()
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

    def path_if(self, build_id: bytes) -> str | None:
        """Its path if this is its build id (padded with zeros or not)."""
        return self._path if is_same_build_id(self._build_id, build_id) else None


def _own() -> bytes | None:
    try:
        for line in Path("/proc/self/maps").read_bytes().splitlines():
            if line.endswith(VDSO.encode()):
                start, end = (int(number, 16) for number in line.split()[0].split(b"-"))
                with Path("/proc/self/mem").open("rb", buffering=0) as memory:
                    memory.seek(start)
                    return memory.read(min(end - start, _MOST))
    except (OSError, ValueError):
        pass
    return None


_PAGE = 4096
_MOST_CODE = 1 << 30
"""Bytes of all files together."""
_HOLES = 16
"""A file with so many times the bytes that are on disk is mostly holes, and no program."""
_SMALL = 1 << 24
"""Unless it is as small as this: not all file systems know so soon what is on disk."""
_SECTOR = 512
_PSEUDO = ("/proc", "/sys", "/sys/kernel/tracing", "/sys/kernel/debug")


def is_same_build_id(one: bytes | None, other: bytes | None) -> bool:
    """Return whether two build ids are equal. Old recordings pad them with zeros to 20 bytes."""
    return one is not None and other is not None and one.ljust(20, b"\0") == other.ljust(20, b"\0")


def describe_build_id(build_id: bytes | None) -> str:
    """Return `has build id ...` or `has no build id`."""
    return f"has build id {build_id.hex()}" if build_id else "has no build id"


class UnusableFile(Exception):  # noqa: N818 - carries a Problem to the mapping that it spoils
    """A file's bytes cannot be used."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(slots=True)
class _File:
    """A file as it was when it was first opened; `shown` is what messages call it."""

    real: str
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
    """Opens recorded paths.

    `path_map` gives other places for recorded paths (files or directories; the longest match
    counts), `symfs` is a directory to look up all other recorded paths under, as for perf.
    `build_ids` maps recorded paths to build ids that the mapping records themselves do not carry.
    `build_id_cache` is a directory laid out as ~/.debug, searched by build id if the file proper
    does not fit. `recorded` is when the recording ended, in seconds since 1970: a file without a
    known build id that was modified later is refused. With `kept` a path that has no other place
    is one of these files, or missing. What is nowhere else is asked of `debuginfod`.
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
        self._used: dict[tuple[str, bytes | None], _File | Problem] = {}
        self._open: dict[str, _File | Problem] = {}
        self._read_bytes = 0
        self._own_vdso: CurrentVdso | None = None
        self._listed: dict[str, FileSymbols] = {}

    def set_symbols(self, path: str, symbols: FileSymbols) -> None:
        """These are the functions of what was mapped as `path`, which need not be a file."""
        self._listed[path] = symbols

    def was_requested(self, path: str, build_id: bytes | None) -> bool:
        """Whether this file was asked for before."""
        return self._asked(path, build_id) in self._used

    def build_id(self, path: str) -> bytes | None:
        """What is known of a file beside the record of its mapping."""
        return self._build_ids.get(path)

    def local_path(self, path: str) -> str:
        """Where the file that was recorded as `path` is looked for."""
        return "".join(self._named(path))

    def _named(self, path: str) -> tuple[str, str]:
        """The same, in what the user named and what the recording did."""
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
        """As `locate`; None for what is looked for in a pack alone."""
        located = self.local_path(path)
        return located if self._packed is None or located != path else None

    def read_code(self, path: str, offset: int, size: int, build_id: bytes | None = None) -> Code:
        """`size` bytes at `offset` of the file recorded as `path`, shared between callers.

        The last page of a mapping may reach beyond the end of the file; it is cut there. Raises
        UnusableFile if the file is missing, not the one that was recorded, or too short.
        """
        file = self._file(path, build_id)
        if (offset, size) not in file.codes:
            file.codes[offset, size] = self._read(path, file, offset, size)
        return file.codes[offset, size]

    def symbols(self, path: str, build_id: bytes | None = None) -> FileSymbols | None:
        """The functions of the file recorded as `path`, those of its debug file among them; None if
        it is unusable or no ELF. What is no file has those that `list` was told.
        """
        if path in self._listed:
            return self._listed[path]
        if not has_file(path) and path != VDSO:
            return None
        try:
            file = self._file(path, build_id)
            if file.symbols is None and file.elf is not None:
                debug = self._debug_file(file, file.elf, path)
                symbols = FileSymbols(file.elf, debug)
                symbols.address(0)  # read now, so that a broken table shows here
                symbols.keep_alive = file.packed
                file.symbols = symbols
        except (UnusableFile, ImageError):
            return None
        return file.symbols

    def requested_files(self) -> dict[Key, PackedFile]:
        """Every file that was asked for so far, where it is, and its debug file."""
        found = {}
        for (path, build_id), file in self._used.items():
            if isinstance(file, Problem):
                found[key(path, build_id)] = PackedFile(path, problem=file)
                continue
            self.symbols(path, build_id)
            # this process's own has another name each time
            shown = path if path == VDSO else file.shown
            found[key(path, build_id)] = PackedFile(shown, file.real, file.debug)
        return found

    def _debug_file(self, file: _File, elf: ElfFile, path: str) -> ElfFile | None:
        if file.packed is None:
            debug = find_debug_file(elf, path, self._symfs) or self._fetched_debug(elf)
        elif file.packed.debug is not None:
            from rtit._core import ElfFile

            debug = ElfFile(file.packed.debug)
        else:
            return None
        file.debug = str(debug.path) if debug is not None else None
        return debug

    def _fetched_debug(self, elf: ElfFile) -> ElfFile | None:
        if self._debuginfod is None or elf.build_id is None:
            return None
        path = self._debuginfod.debuginfo(elf.build_id)
        return open_if_build_id(path, elf.build_id) if path is not None else None

    def _asked(self, path: str, build_id: bytes | None) -> tuple[str, bytes | None]:
        if not build_id or not any(build_id):
            build_id = self._build_ids.get(path)
        return path, build_id

    def _file(self, path: str, build_id: bytes | None) -> _File:
        asked = self._asked(path, build_id)
        try:
            file = self._find(*asked)
        except UnusableFile as error:
            self._used[asked] = error.problem
            raise
        self._used[asked] = file
        return file

    def _vdso_places(self, build_id: bytes | None) -> Iterator[str]:
        """Where the kernel's code for processes may be: a place named for it, perf's cache, and
        this process's own.
        """
        named = self.local_path(VDSO)
        if any(recorded == VDSO for recorded, _ in self._map):
            yield named
        if build_id is None:
            return
        if self._cache is not None:
            name = build_id.hex()
            yield str(self._cache / ".build-id" / name[:2] / name[2:] / "vdso")
        if self._own_vdso is None:
            self._own_vdso = CurrentVdso()
        own = self._own_vdso.path_if(build_id)
        if own is not None:
            yield own

    def _find(self, path: str, build_id: bytes | None) -> _File:
        packed = None
        if self._packed is not None:
            packed = self._packed.get(key(path, build_id)) or self._packed.get(key(path, None))
        first: Problem | None = None
        for real in self._places(path, build_id, packed):
            of_pack = packed is not None and real == packed.file
            if (
                is_in_guest(path)
                and real == self.local_path(path)
                and _may_lead_out(*self._named(path))
            ):
                message = "a link, or a path with ..: it may lead out of the guest"
                first = first or Problem("unreadable", path, message)
                continue
            file = self._opened(path, real, packed if of_pack else None)
            own = real == path
            if isinstance(file, Problem):
                problem: Problem | None = replace(file, path=path)
            else:
                problem = self._differs(path, file, build_id, own)
                if problem is None:
                    return file
            first = first or problem
        first = first or (packed.problem if packed is not None else None)
        raise UnusableFile(first or Problem("missing", path, "the file does not exist"))

    def _places(
        self, path: str, build_id: bytes | None, packed: PackedFile | None
    ) -> Iterator[str]:
        """Where the file may be, each when those before it were of no use."""
        if path == VDSO:
            yield from self._vdso_places(build_id)
        else:
            yield from self._named_places(path, build_id)
        if packed is not None and packed.file is not None:
            yield packed.file
        if self._debuginfod is not None and build_id and path != VDSO:
            fetched = self._debuginfod.executable(build_id)
            if fetched is not None:
                yield fetched

    def _named_places(self, path: str, build_id: bytes | None) -> Iterator[str]:
        located = self.path_outside_pack(path)
        if located is not None and not (located == path and is_in_guest(path)):
            yield located
        if self._cache is not None and build_id:
            name = build_id.hex()
            yield str(self._cache / ".build-id" / name[:2] / name[2:] / "elf")

    def _opened(self, path: str, real: str, packed: PackedFile | None) -> _File | Problem:
        if real not in self._open:
            self._open[real] = _open(path, real, packed)
        return self._open[real]

    def _differs(self, path: str, file: _File, build_id: bytes | None, own: bool) -> Problem | None:
        if build_id:
            found = file.elf.build_id if file.elf is not None else None
            if is_same_build_id(found, build_id):
                return None
            message = f"{file.shown} {describe_build_id(found)}, recorded was {build_id.hex()}"
            return Problem("changed", path, message, found.hex() if found else None)
        if own and self._recorded is not None and file.modified > self._recorded:
            return Problem("changed", path, "the file was modified after the recording")
        return None

    def _read(self, path: str, file: _File, offset: int, size: int) -> Code:
        if offset + size > -(-file.size // _PAGE) * _PAGE:
            message = f"{file.shown} ends before the mapping does, at {file.size:#x}"
            raise UnusableFile(Problem("truncated", path, message, file.size))
        wanted = max(0, min(size, file.size - offset))
        for start, code in file.parts:
            if start <= offset and offset + wanted <= start + len(code):
                return code.slice(offset - start, wanted)
        # Parts that lie over each other could be many times the file: it is read as a whole then.
        start, size = (offset, wanted) if file.read + wanted <= file.size else (0, file.size)
        if self._read_bytes + size > _MOST_CODE:
            message = f"the code of all files together has more than {_MOST_CODE:,} bytes"
            raise UnusableFile(Problem("unreadable", path, message, size))
        if size > max(_SMALL, file.blocks * _SECTOR * _HOLES):
            message = f"{file.shown} is mostly holes: no code is read from it"
            raise UnusableFile(Problem("unreadable", path, message, size))
        code = _read(path, file, start, size)
        self._read_bytes += size
        file.read += size
        file.parts.append((start, code))
        return code.slice(offset - start, wanted)


def _read(path: str, file: _File, offset: int, wanted: int) -> Code:
    from rtit._core import Code

    try:
        with Path(file.real).open("rb", buffering=0) as source:
            if _stamp(os.fstat(source.fileno())) != file.stamp:
                raise UnusableFile(Problem("changed", path, f"{file.real} changed while in use"))
            source.seek(offset)
            data = source.read(wanted)
            while len(data) < wanted and (more := source.read(wanted - len(data))):
                data += more
    except OSError as error:
        raise UnusableFile(Problem("unreadable", path, f"{file.real}: {error.strerror}")) from error
    if len(data) < wanted:
        message = f"{file.real} became shorter while it was read"
        raise UnusableFile(Problem("truncated", path, message, offset + len(data)))
    return Code(data)


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _may_lead_out(folder: str, path: str) -> bool:
    """Whether a link leads from `folder`, which the user named, to a file of a guest below it, or
    its `path` goes up: who owns the guest may put any link there, and any path into its records.
    """
    there = os.path.realpath(folder).rstrip("/") + "/" + path
    linked = bool(path) and os.path.realpath(folder + path) != os.path.normpath(there)
    return linked or ".." in path.split("/")


def _is_pseudo(status: os.stat_result) -> bool:
    for folder in map(Path, _PSEUDO):
        try:
            # Where nothing is mounted there the folder is one of the file system that it is in.
            if status.st_dev == folder.stat().st_dev and folder.is_mount():
                return True
        except OSError:
            continue
    return False


def _open(path: str, real: str, packed: PackedFile | None) -> _File | Problem:
    from rtit._core import ElfFile

    try:
        status = Path(real).stat()
        if not stat.S_ISREG(status.st_mode):
            return Problem("unreadable", path, f"{real} is not a regular file")
        if not status.st_size or _is_pseudo(status):
            # Of /proc and its like some block who reads them, and all of these have no size.
            return Problem("unreadable", path, f"{real} is empty, or no file on a disk")
        with Path(real).open("rb") as source:
            magic = source.read(4)
        elf = ElfFile(real) if magic == b"\x7fELF" else None
    except FileNotFoundError:
        return Problem("missing", path, f"{real} does not exist")
    except OSError as error:
        return Problem("unreadable", path, f"{real}: {error.strerror}")
    except ValueError as error:  # a path with a NUL byte
        return Problem("unreadable", path, str(error))
    except ImageError as error:
        return Problem("unreadable", path, str(error))
    shown = real if packed is None else packed.name
    place = (real, shown, status.st_size, _stamp(status), status.st_mtime)
    return _File(*place, elf, status.st_blocks, packed=packed)
