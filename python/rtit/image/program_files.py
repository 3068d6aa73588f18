"""The program files of a recorded system: a zip archive beside the recording.

Files that are not in the archive, nor in a place that the user names, are unknown: a path of the
recorded system may lead to another file on this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Mapping
from pathlib import Path

from rtit.errors import ImageError, unreadable_image
from rtit.image.mapped_files import Key, PackedFile, PackedFiles

_NO_BUILD_ID = "-"
_MEMBER = re.compile(r"(-|(?:[0-9a-f]{2}){1,64})(/.+)", re.DOTALL)
"""Build id and path."""
_MAX_SIZE, _MAX_FILES = 1 << 30, 1 << 16
_BLOCK_SIZE = 1 << 18


def program_files_path(recording: str) -> str:
    """Return the path of the archive, beside the recording."""
    return f"{recording}.programs.zip"


def write_program_files(path: str, files: Mapping[Key, memoryview]) -> None:
    """Write the archive, with these contents. Raises OSError."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for (name, build_id), content in files.items():
            archive.writestr(f"{build_id or _NO_BUILD_ID}{name}", content)


class ProgramFiles:
    """Copies of the files of an archive, in a temporary folder that exists as long as this object.

    Raises ImageError.
    """

    def __init__(self, path: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rtit-programs-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
                size = sum(each.file_size for each in members)
                if size > _MAX_SIZE or len(members) > _MAX_FILES:
                    message = f"has {len(members):,} files with {size:,} bytes"
                    raise ImageError(message, source=path)
                self.files: PackedFiles = dict(
                    self._copy_member(archive, each, number) for number, each in enumerate(members)
                )
        except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise unreadable_image(error, path) from error

    def _copy_member(
        self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, number: int
    ) -> tuple[Key, PackedFile]:
        found = _MEMBER.fullmatch(member.filename)
        if found is None:
            raise zipfile.BadZipFile(f"a file named {member.filename[:80]!r}")
        build_id, path = found.groups()
        copy = self._folder / str(number)
        with archive.open(member) as source, copy.open("xb") as target:
            shutil.copyfileobj(source, target, _BLOCK_SIZE)
        key = path, "" if build_id == _NO_BUILD_ID else build_id
        return key, PackedFile(path, os.fspath(copy), owner=self)
