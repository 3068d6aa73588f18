"""What a pack says is in it: `rtit-pack.json`, of which nothing is believed.

Packs: a recording in one file with all the code that it ran, as `trace.packing` writes them.

A pack is a zip archive:

    rtit-pack.json          what is in it, see `Contents`
    recording/perf.data     the recording; or recording/data and so on, if it is a directory
    files/0, files/1, ...   files that ran, and their debug files
    kernel/...              kcore (what ran), kallsyms, vmlinux, modules/NAME.ko of the kernel
    guest/..., guest-PID/.. those of virtual machines; listed: of /proc/modules
    jit/0/jit-PID.dump      code that programs made; names of it: perf-PID.map

Nothing in it is believed: no name in it becomes a path, and what it says it grows to is bounded by
its size.

Writing packs (see `packed`): files as a whole, since lines, symbols and code that did not run
are asked for, too. The same trace gives the same bytes.

Whether what is opened is a pack: nothing that takes one apart is loaded for what is none.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, get_args

from rtit.errors import InputError, RtitError
from rtit.image.files import Key, Kind, PackedFile, Problem
from rtit.image.guest_processes import GuestProcess
from rtit.image.kernel.sources import FOLDER, KernelFiles
from rtit.image.mappings import KERNEL_START
from rtit.readable import format_json, parse_json, text_to_name

if TYPE_CHECKING:
    from rtit.image import Kernel
    from rtit.trace import Trace


LIST = "rtit-pack.json"
FORMAT = 1
RECORDING, FILES = "recording/", "files/"
KERNEL, JIT = "kernel/", "jit/"
GUEST = re.compile(r"guest(?:-([0-9]{1,10}))?/", re.ASCII)
OF_RECORDING = re.compile(r"recording/(?:\w[\w.-]{0,99}/)?\w[\w.-]{0,99}", re.ASCII)
OF_MORE = re.compile(
    r"(?:kernel|guest(?:-[0-9]{1,10})?)/"
    r"(?:kcore|kallsyms|vmlinux|listed|modules/[\w-]{1,100}\.ko(?:\.(?:gz|xz|zst))?)"
    r"|jit/[0-9]{1,4}/(?:jit-[0-9]{1,10}\.dump|perf-[0-9]{1,10}\.map)",
    re.ASCII,
)
_PLAIN = re.compile(r"files/[0-9]{1,7}")
_KINDS = frozenset(get_args(Kind))


@dataclass(frozen=True, slots=True)
class Contents:
    """What a pack says is in it. `recording` are the members that the recording is, `folder` if
    that is a directory; `modified`: when it was (seconds since 1970); the `files` name members.
    `more` are members of kernels and of code that programs made, with what they were called;
    `problems` what was wrong with others of these, by KERNEL, what GUEST matches, and JIT;
    `guest_processes` are those that were named.
    """

    recording: tuple[str, ...]
    folder: bool
    modified: float
    files: dict[Key, PackedFile] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)
    problems: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    guest_processes: tuple[GuestProcess, ...] = ()

    def encode(self) -> bytes:
        """As JSON."""
        rows = [
            {
                "path": path,
                "build_id": build_id,
                "name": kept.name,
                "file": kept.file,
                "debug": kept.debug,
                "problem": None
                if kept.problem is None
                else [kept.problem.kind, kept.problem.message, kept.problem.value],
            }
            for (path, build_id), kept in self.files.items()
        ]
        said = {
            "format": FORMAT,
            "recording": self.recording,
            "folder": self.folder,
            "modified": self.modified,
            "files": rows,
            "more": self.more,
            "problems": {
                whose: [[each.kind, each.path, each.message, each.value] for each in told]
                for whose, told in self.problems.items()
            },
            "guest_processes": [
                [each.cr3, each.vmcs, each.machine, each.rows] for each in self.guest_processes
            ],
        }
        return format_json(said, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Contents:
        """Back from JSON. Raises ValueError for anything else."""
        said = parse_json(data)
        version = _of(dict, said).get("format")
        if version != FORMAT:
            raise ValueError(f"its format is {version!r}, and {FORMAT} is known")
        recording = tuple(_name(OF_RECORDING, each) for each in _of(list, said["recording"]))
        if not recording:
            raise ValueError("there is no recording in it")
        files = dict(_row(each) for each in _of(list, said["files"]))
        modified = float(_of((int, float), said["modified"]))
        more = {
            _name(OF_MORE, member): _of(str, name)
            for member, name in _of(dict, said.get("more", {})).items()
        }
        problems = {
            _of(str, whose): tuple(_problem(*_of(list, each)) for each in _of(list, told))
            for whose, told in _of(dict, said.get("problems", {})).items()
        }
        processes = tuple(map(_process, _of(list, said.get("guest_processes", []))))
        if len({each.key for each in processes}) < len(processes):
            raise ValueError("two processes of guests have one CR3")
        folder = _of(bool, said["folder"])
        return cls(recording, folder, modified, files, more, problems, processes)


def _row(said: Any) -> tuple[Key, PackedFile]:
    row = _of(dict, said)
    path, build_id = _of(str, row["path"]), _of(str, row["build_id"])
    file, debug = (_name(_PLAIN, row[key]) if row[key] else None for key in ("file", "debug"))
    problem = None
    if row["problem"] is not None:
        kind, message, value = _of(list, row["problem"])
        problem = _problem(kind, path, message, value)
    return (path, build_id), PackedFile(_of(str, row["name"]), file, debug, problem)


def _process(said: Any) -> GuestProcess:
    cr3, vmcs, machine, rows = _of(list, said)
    places = []
    for each in _of(list, rows):
        start, end, offset, path = _of(list, each)
        if (
            not 0 <= _of(int, start) < _of(int, end) <= KERNEL_START
            or not 0 <= _of(int, offset) < KERNEL_START
        ):
            raise ValueError(f"no mapping: {str(each)[:80]}")
        places.append((start, end, offset, _of(str, path)))
    for number in (cr3, machine, 0 if vmcs is None else vmcs):
        if not 0 <= _of(int, number) < 1 << 64:
            raise ValueError(f"no CR3, VMCS pointer or process: {number}")
    return GuestProcess(cr3, vmcs, machine, tuple(places))


def _problem(kind: Any, path: Any, message: Any, value: Any) -> Problem:
    if kind not in _KINDS:
        raise ValueError(f"no kind of problem: {kind!r}")
    value = None if value is None else _of((str, int), value)
    return Problem(kind, _of(str, path), _of(str, message), value)


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"its list has {str(value)[:40]!r} where it must not")
    return text_to_name(value) if isinstance(value, str) else value


def _name(form: re.Pattern[str], value: Any) -> str:
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise ValueError(f"its list names {str(value)[:80]!r}")
    return value


ALWAYS = 1 << 30
RATIO = 256
"""A pack grows to so many bytes, and so many times its size, at most."""

_MODULES = "modules"
_LARGEST_LIST = 1 << 24
_LARGEST_DIRECTORY = 1 << 20
_READ_CHUNK = 1 << 18


class Pack:
    """A pack that is open: its files are in a folder of their own as long as somebody has one of
    `files`, or until `close`.

    `recording` is the path of the recording there, `files` are those that it ran; `kernel` those
    of the kernel, None if nothing was known of it, `guests` those of virtual machines, by their
    processes, 0: of all others, `guest_processes` what runs in them; `jit` are files that tell of
    code that programs made, by their paths there, with their names, `jit_problems` what was wrong
    with others. Raises InputError for what is no pack, contradicts itself, or grows beyond all
    measure.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self._folder = tempfile.mkdtemp(prefix="rtit-pack-")
        self.close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        try:
            found = _unpack(file, Path(self._folder))
        except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, EOFError) as error:
            self.close()
            raise InputError(f"no pack that can be read: {error}", source=name) from error
        except (NotImplementedError, RuntimeError, OverflowError) as error:
            # of zipfile: encrypted members, other ways to compress; of json: too deep
            self.close()
            raise InputError(f"no pack of rtit: {error}", source=name) from error
        except OSError as error:
            self.close()
            message = f"cannot be unpacked to {tempfile.gettempdir()} (TMPDIR says where)"
            raise InputError(f"{message}: {error.strerror}", source=name) from error
        except BaseException:
            self.close()
            raise
        place = Path(self._folder, "recording" if found.folder else found.recording[0])
        self.recording = str(place)
        self.files = {key: replace(each, owner=self) for key, each in found.files.items()}
        self.kernel = self._kernel(found, KERNEL)
        self.guest_processes = found.guest_processes
        self.guests: dict[int, KernelFiles] = {}
        for member in (*found.more, *found.problems):
            guest = GUEST.match(member)
            files = self._kernel(found, guest[0]) if guest is not None else None
            if guest is not None and files is not None:
                self.guests[int(guest[1] or 0)] = files
        self.jit = {
            str(Path(self._folder, member)): name
            for member, name in found.more.items()
            if member.startswith(JIT)
        }
        self.jit_problems = found.problems.get(JIT, ())

    def _kernel(self, found: Contents, whose: str) -> KernelFiles | None:
        own = [member for member in found.more if member.startswith(whose)]
        problems = found.problems.get(whose, ())
        if not own and not problems:
            return None
        folder = Path(self._folder, whose)
        kcore, kallsyms, vmlinux, listed = (
            str(folder / name) if whose + name in own else None
            for name in ("kcore", "kallsyms", "vmlinux", "listed")
        )
        has_modules = any(member.startswith(f"{whose}{_MODULES}/") for member in own)
        modules = str(folder / _MODULES) if has_modules else None
        return KernelFiles(kcore, kallsyms, vmlinux, modules, listed, problems=problems, owner=self)


class _Bounded(io.RawIOBase):
    """A file of which no part is read that is larger than what an archive's directory may be."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.whole = os.fstat(file.fileno()).st_size

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = self.whole - self.tell()
        if size > _LARGEST_DIRECTORY:
            raise zipfile.BadZipFile(f"its directory has {size:,} bytes")
        return self._file.read(size)


def _unpack(file: BinaryIO, folder: Path) -> Contents:
    bounded = _Bounded(file)
    with zipfile.ZipFile(bounded) as archive:
        found = Contents.decode(_list(archive))
        wanted = [archive.getinfo(name) for name in dict.fromkeys(_members(found))]
        size = sum(each.file_size for each in wanted)
        if size > ALWAYS + RATIO * bounded.whole:
            raise ValueError(f"it would grow from {bounded.whole:,} to {size:,} bytes")
        for member in wanted:
            place = folder / member.filename
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, place.open("xb") as copy:
                shutil.copyfileobj(source, copy, _READ_CHUNK)
    for name in found.recording:
        os.utime(folder / name, (found.modified, found.modified))
    there = {
        key: PackedFile(
            kept.name, _there(folder, kept.file), _there(folder, kept.debug), kept.problem
        )
        for key, kept in found.files.items()
    }
    return replace(found, files=there)


def _list(archive: zipfile.ZipFile) -> bytes:
    with archive.open(LIST) as source:
        data = source.read(_LARGEST_LIST + 1)
    if len(data) > _LARGEST_LIST:
        raise ValueError(f"its list has more than {_LARGEST_LIST:,} bytes")
    return data


def _members(found: Contents) -> Iterator[str]:
    yield from found.recording
    yield from found.more
    for kept in found.files.values():
        yield from filter(None, (kept.file, kept.debug))


def _there(folder: Path, member: str | None) -> str | None:
    return None if member is None else str(folder / member)


_COPY_CHUNK = 1 << 20
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
    used = trace.images.files.requested_files()
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
    files: dict[Key, PackedFile] = {
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
            if kcore.was_read:
                found[f"{whose}kcore"] = "kcore", kcore.read_pages_core
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
        yield "perf.data", data.blocks
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
                while part := source.read(_COPY_CHUNK):
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


_MAGIC = b"PK\x03\x04"


def pack_in(source: str | os.PathLike[str] | BinaryIO) -> Pack | None:
    """The pack in a file, by its path or open for reading; None if it is something else, which may
    be anything. Raises InputError for a pack that cannot be read.
    """
    if not isinstance(source, str | os.PathLike):
        name = getattr(source, "name", None)
        return _pack(source, name if isinstance(name, str) else "a pack")
    try:
        if not stat.S_ISREG(Path(source).stat().st_mode):
            return None
        with Path(source).open("rb") as file:
            return _pack(file, os.fspath(source))
    except (OSError, ValueError):
        return None  # who reads recordings says why


def _pack(file: BinaryIO, name: str) -> Pack | None:
    try:
        descriptor = file.fileno()
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if not regular or file.tell() or os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
            return None
    except io.UnsupportedOperation:
        return None

    return Pack(file, name)
