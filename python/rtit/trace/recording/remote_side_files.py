"""The files beside a remote recording: kernel symbols, jitdump files and perf maps.

They are small compared to the recording, and are read as a whole, so they are copied to a temporary
folder.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from rtit.errors import PerfDataError
from rtit.image.jit_files import DUMP_NAME, MAP_NAME
from rtit.image.kernel.kernel_files import kallsyms_path
from rtit.image.program_files import program_files_path
from rtit.remote_files import RemoteFile, display_name

_MAX_SIZE = 1 << 30
"""Bytes of all copies."""
_PART = 1 << 22


class RemoteSideFiles:
    """Copies of files beside a remote recording, which exist as long as this object."""

    def __init__(self, recording: RemoteFile) -> None:
        self._recording = recording
        self._folder = Path(tempfile.mkdtemp(prefix="rtit-remote-"))
        self._size = 0
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def copy_kallsyms(self) -> str | None:
        """Return the path of a copy of the kernel symbols of a recorded system, if there are any.

        Raises PerfDataError if the copy would be too large.
        """
        return self._copy_file(kallsyms_path(self._recording.file_name))

    def copy_program_files(self) -> str | None:
        """Return the path of a copy of the program files of a recorded system, if there are any.

        Raises PerfDataError if the copy would be too large.
        """
        return self._copy_file(program_files_path(self._recording.file_name))

    def copy_jit_files(self) -> dict[str, str]:
        """Return path of the copy -> URL of each jitdump file and perf map. By http there are none.

        Raises PerfDataError if the copies would be too large.
        """
        found: dict[str, str] = {}
        for name in self._recording.names_beside():
            if DUMP_NAME.fullmatch(name) or MAP_NAME.fullmatch(name):
                copy = self._copy_file(name)
                if copy is not None:
                    found[copy] = display_name(self._recording.url_beside(name))
        return found

    def _copy_file(self, name: str) -> str | None:
        file = self._recording.open_beside(name)
        if file is None:
            return None
        self._size += file.size
        if self._size > _MAX_SIZE:
            message = f"the files beside the recording have more than {_MAX_SIZE:,} bytes"
            raise PerfDataError(message, source=file.name, value=self._size)
        path = self._folder / name
        with path.open("xb") as copy:
            for start in range(0, file.size, _PART):
                copy.write(file.read_range(start, min(start + _PART, file.size)))
        return str(path)
