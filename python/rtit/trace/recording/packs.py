"""Packs: a recording in one file, with all the code that it executed.

A pack is a zip archive:

    rtit-pack.json          the list of its members (`PackManifest`)
    recording/perf.data     the recording; or recording/data and so on, if it is a directory
    files/0, files/1, ...   executed files, and their debug files
    kernel/...              kcore (executed code), kallsyms, vmlinux, modules/NAME.ko, listed
    guest/..., guest-PID/.. the same of virtual machines; listed: of /proc/modules
    jit/0/jit-PID.dump      JIT code; names of it: perf-PID.map

`pack_writer` writes packs, `open_pack` recognizes one, and `OpenPack` unpacks it to a temporary
folder.

A pack is untrusted input: no name in it becomes a path without a check, and its unpacked size is
bounded by the size of the archive.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, get_args

from rtit.errors import InputError
from rtit.image.guest_processes import GuestProcess
from rtit.image.kernel.kernel_files import KernelFiles
from rtit.image.mapped_files import Key, PackedFile
from rtit.image.mappings import KERNEL_START
from rtit.image.problems import Kind, Problem
from rtit.text_escaping import format_json, parse_json, text_to_name

MANIFEST = "rtit-pack.json"
FORMAT = 1
RECORDING, FILES = "recording/", "files/"
KERNEL, JIT = "kernel/", "jit/"
GUEST = re.compile(r"guest(?:-([0-9]{1,10}))?/", re.ASCII)
RECORDING_MEMBER = re.compile(r"recording/(?:\w[\w.-]{0,99}/)?\w[\w.-]{0,99}", re.ASCII)
EXTRA_MEMBER = re.compile(
    r"(?:kernel|guest(?:-[0-9]{1,10})?)/"
    r"(?:kcore|kallsyms|vmlinux|listed|modules/[\w-]{1,100}\.ko(?:\.(?:gz|xz|zst))?)"
    r"|jit/[0-9]{1,4}/(?:jit-[0-9]{1,10}\.dump|perf-[0-9]{1,10}\.map)",
    re.ASCII,
)
_FILE_MEMBER = re.compile(r"files/[0-9]{1,7}")
_KINDS = frozenset(get_args(Kind))


@dataclass(frozen=True, slots=True)
class PackManifest:
    """The list of a pack's members.

    `recording`: the files of the recording, in a directory if `folder`. `modified`: its time, in
    seconds since 1970. `files`: executed files; their paths are members. `more`: members of kernels
    and of JIT code, with their original names. `problems`: missing files, by KERNEL, a match of
    GUEST, or JIT. `guest_processes`: the named processes of virtual machines.
    """

    recording: tuple[str, ...]
    folder: bool
    modified: float
    files: dict[Key, PackedFile] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)
    problems: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    guest_processes: tuple[GuestProcess, ...] = ()

    def encode_manifest(self) -> bytes:
        """Return the manifest as JSON."""
        rows = [
            {
                "path": path,
                "build_id": build_id,
                "name": packed.name,
                "file": packed.file,
                "debug": packed.debug,
                "problem": None
                if packed.problem is None
                else [packed.problem.kind, packed.problem.message, packed.problem.value],
            }
            for (path, build_id), packed in self.files.items()
        ]
        document = {
            "format": FORMAT,
            "recording": self.recording,
            "folder": self.folder,
            "modified": self.modified,
            "files": rows,
            "more": self.more,
            "problems": {
                folder: [[each.kind, each.path, each.message, each.value] for each in problems]
                for folder, problems in self.problems.items()
            },
            "guest_processes": [
                [each.cr3, each.vmcs, each.machine, each.rows] for each in self.guest_processes
            ],
        }
        return format_json(document, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> PackManifest:
        """Parse JSON. Raises ValueError, TypeError or KeyError if it is no manifest."""
        document = parse_json(data)
        version = _expect_type(dict, document).get("format")
        if version != FORMAT:
            raise ValueError(f"its format is {version!r}, not {FORMAT}")
        recording = tuple(
            _expect_name(RECORDING_MEMBER, each)
            for each in _expect_type(list, document["recording"])
        )
        if not recording:
            raise ValueError("there is no recording in it")
        files = dict(_decode_file(each) for each in _expect_type(list, document["files"]))
        modified = float(_expect_type((int, float), document["modified"]))
        more = {
            _expect_name(EXTRA_MEMBER, member): _expect_type(str, name)
            for member, name in _expect_type(dict, document.get("more", {})).items()
        }
        problems = {
            _expect_type(str, name): tuple(
                _decode_problem(*_expect_type(list, each)) for each in _expect_type(list, listed)
            )
            for name, listed in _expect_type(dict, document.get("problems", {})).items()
        }
        processes = tuple(
            map(_decode_process, _expect_type(list, document.get("guest_processes", [])))
        )
        if len({each.key for each in processes}) < len(processes):
            raise ValueError("two guest processes have the same CR3")
        folder = _expect_type(bool, document["folder"])
        return cls(recording, folder, modified, files, more, problems, processes)


def _decode_file(document: Any) -> tuple[Key, PackedFile]:
    row = _expect_type(dict, document)
    path, build_id = _expect_type(str, row["path"]), _expect_type(str, row["build_id"])
    file, debug = (
        _expect_name(_FILE_MEMBER, row[key]) if row[key] else None for key in ("file", "debug")
    )
    problem = None
    if row["problem"] is not None:
        kind, message, value = _expect_type(list, row["problem"])
        problem = _decode_problem(kind, path, message, value)
    return (path, build_id), PackedFile(_expect_type(str, row["name"]), file, debug, problem)


def _decode_process(document: Any) -> GuestProcess:
    cr3, vmcs, machine, rows = _expect_type(list, document)
    mappings = []
    for each in _expect_type(list, rows):
        start, end, offset, path = _expect_type(list, each)
        if (
            not 0 <= _expect_type(int, start) < _expect_type(int, end) <= KERNEL_START
            or not 0 <= _expect_type(int, offset) < KERNEL_START
        ):
            raise ValueError(f"no mapping: {str(each)[:80]}")
        mappings.append((start, end, offset, _expect_type(str, path)))
    for number in (cr3, machine, 0 if vmcs is None else vmcs):
        if not 0 <= _expect_type(int, number) < 1 << 64:
            raise ValueError(f"no CR3, VMCS pointer or process: {number}")
    return GuestProcess(cr3, vmcs, machine, tuple(mappings))


def _decode_problem(kind: Any, path: Any, message: Any, value: Any) -> Problem:
    if kind not in _KINDS:
        raise ValueError(f"no kind of problem: {kind!r}")
    value = None if value is None else _expect_type((str, int), value)
    return Problem(kind, _expect_type(str, path), _expect_type(str, message), value)


def _expect_type(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"its list has {str(value)[:40]!r} where it must not")
    return text_to_name(value) if isinstance(value, str) else value


def _expect_name(form: re.Pattern[str], value: Any) -> str:
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise ValueError(f"its list names {str(value)[:80]!r}")
    return value


MIN_SIZE_LIMIT = 1 << 30
MAX_SIZE_RATIO = 256
"""A pack may unpack to this many bytes, and beyond that to this many times its size."""

_MODULES = "modules"
_MAX_MANIFEST = 1 << 24
_MAX_DIRECTORY = 1 << 20
_READ_CHUNK = 1 << 18


class OpenPack:
    """An open pack. Its files are in a temporary folder that exists until `close`, or until no user
    of `files` is left.

    `recording`: path of the unpacked recording. `files`: executed files. `kernel`: files of the
    kernel, None if there were none; `guests`: of virtual machines by process id, 0 for all others;
    `guest_processes`: processes in them. `jit`: files with JIT code by unpacked path, with their
    original names; `jit_problems`: missing ones. Raises InputError if the file is no valid pack.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self._folder = tempfile.mkdtemp(prefix="rtit-pack-")
        self.close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        try:
            found = _extract_pack(file, Path(self._folder))
        except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, EOFError) as error:
            self.close()
            raise InputError(f"not a readable pack: {error}", source=name) from error
        except (NotImplementedError, RuntimeError, OverflowError) as error:
            # zipfile: encrypted members, unknown compression; json: nested too deeply.
            self.close()
            raise InputError(f"not a pack of rtit: {error}", source=name) from error
        except OSError as error:
            self.close()
            message = (
                f"cannot be unpacked to {tempfile.gettempdir()} (set TMPDIR to use another folder)"
            )
            raise InputError(f"{message}: {error.strerror}", source=name) from error
        except BaseException:
            self.close()
            raise
        recording = "recording" if found.folder else found.recording[0]
        self.recording = str(Path(self._folder, recording))
        self.files = {key: replace(each, owner=self) for key, each in found.files.items()}
        self.kernel = self._kernel_files(found, KERNEL)
        self.guest_processes = found.guest_processes
        self.guests: dict[int, KernelFiles] = {}
        for member in (*found.more, *found.problems):
            guest = GUEST.match(member)
            files = self._kernel_files(found, guest[0]) if guest is not None else None
            if guest is not None and files is not None:
                self.guests[int(guest[1] or 0)] = files
        self.jit = {
            str(Path(self._folder, member)): name
            for member, name in found.more.items()
            if member.startswith(JIT)
        }
        self.jit_problems = found.problems.get(JIT, ())

    def _kernel_files(self, manifest: PackManifest, folder_name: str) -> KernelFiles | None:
        members = [member for member in manifest.more if member.startswith(folder_name)]
        problems = manifest.problems.get(folder_name, ())
        if not members and not problems:
            return None
        folder = Path(self._folder, folder_name)
        kcore, kallsyms, vmlinux, listed = (
            str(folder / name) if folder_name + name in members else None
            for name in ("kcore", "kallsyms", "vmlinux", "listed")
        )
        has_modules = any(member.startswith(f"{folder_name}{_MODULES}/") for member in members)
        modules = str(folder / _MODULES) if has_modules else None
        return KernelFiles(kcore, kallsyms, vmlinux, modules, listed, problems=problems, owner=self)


class _BoundedFile(io.RawIOBase):
    """A file that rejects single reads beyond the limit for the directory of an archive."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.total_size = file.seek(0, os.SEEK_END)

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = self.total_size - self.tell()
        if size > _MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"its directory has {size:,} bytes")
        return self._file.read(size)


def _extract_pack(file: BinaryIO, folder: Path) -> PackManifest:
    bounded = _BoundedFile(file)
    with zipfile.ZipFile(bounded) as archive:
        found = PackManifest.decode(_read_manifest(archive))
        wanted = [archive.getinfo(name) for name in dict.fromkeys(_member_names(found))]
        size = sum(each.file_size for each in wanted)
        if size > MIN_SIZE_LIMIT + MAX_SIZE_RATIO * bounded.total_size:
            raise ValueError(f"it would grow from {bounded.total_size:,} to {size:,} bytes")
        for member in wanted:
            path = folder / member.filename
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, path.open("xb") as copy:
                shutil.copyfileobj(source, copy, _READ_CHUNK)
    for name in found.recording:
        os.utime(folder / name, (found.modified, found.modified))
    files = {
        key: replace(
            packed,
            file=_unpacked_path(folder, packed.file),
            debug=_unpacked_path(folder, packed.debug),
        )
        for key, packed in found.files.items()
    }
    return replace(found, files=files)


def _read_manifest(archive: zipfile.ZipFile) -> bytes:
    with archive.open(MANIFEST) as source:
        data = source.read(_MAX_MANIFEST + 1)
    if len(data) > _MAX_MANIFEST:
        raise ValueError(f"its list has more than {_MAX_MANIFEST:,} bytes")
    return data


def _member_names(found: PackManifest) -> Iterator[str]:
    yield from found.recording
    yield from found.more
    for packed in found.files.values():
        yield from filter(None, (packed.file, packed.debug))


def _unpacked_path(folder: Path, member: str | None) -> str | None:
    return None if member is None else str(folder / member)
