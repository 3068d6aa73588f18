"""Packs: a recording in one file with all the code that it ran, as `trace.packing` writes them.

A pack is a zip archive:

    rtit-pack.json          what is in it, see `Contents`
    recording/perf.data     the recording; or recording/data and so on, if it is a directory
    files/0, files/1, ...   files that ran, and their debug files
    kernel/...              kcore (what ran), kallsyms, vmlinux, modules/NAME.ko of the kernel
    guest/..., guest-PID/.. those of virtual machines; listed: of /proc/modules
    jit/0/jit-PID.dump      code that programs made; names of it: perf-PID.map

Nothing in it is believed: no name in it becomes a path, and what it says it grows to is bounded by
its size.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from rtit.errors import InputError
from rtit.image.kept import Kept
from rtit.image.kernel.sources import KernelFiles
from rtit.trace.pack_list import GUEST, JIT, KERNEL, LIST, Contents

ALWAYS = 1 << 30
RATIO = 256
"""A pack grows to so many bytes, and so many times its size, at most."""

_MODULES = "modules"
_LARGEST_LIST = 1 << 24
_LARGEST_DIRECTORY = 1 << 20
_PART = 1 << 18


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
                shutil.copyfileobj(source, copy, _PART)
    for name in found.recording:
        os.utime(folder / name, (found.modified, found.modified))
    there = {
        key: Kept(kept.name, _there(folder, kept.file), _there(folder, kept.debug), kept.problem)
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
