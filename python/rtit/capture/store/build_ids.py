"""Build ids of what was mapped, so that a decoder notices a changed file."""

from __future__ import annotations

from rtit._core import ElfFile
from rtit.errors import ImageError
from rtit.image import has_file


class BuildIds:
    """Reads each file once, when it is first mapped: later it may be another."""

    def __init__(self) -> None:
        self._found: dict[str, bytes | None] = {}

    def saw(self, path: str) -> None:
        """A file was mapped. Files that are gone or no ELF are left out."""
        if path in self._found or not has_file(path):
            return
        try:
            self._found[path] = ElfFile(path).build_id
        except ImageError:
            self._found[path] = None

    def known(self) -> dict[str, bytes]:
        """Path -> build id."""
        return {path: build_id for path, build_id in self._found.items() if build_id}
