"""Code that programs made while they ran, at its times among the records."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path

from rtit.errors import ImageError
from rtit.image import Images, Problem
from rtit.image.jit import DUMP, MAP, Load, read_jitdump, read_map

_MOST = 1 << 29


class Jitted:
    """What jitdump files and maps of names tell of some processes. The times of a dump without
    ticks are those of another clock, often: its code is taken to be that of its end, always.
    `files` are paths, with what they are to be called.
    """

    def __init__(
        self,
        images: Images,
        files: Mapping[str, str],
        pids: Container[int],
    ) -> None:
        self._images = images
        self._names = files
        self._maps: list[tuple[int, str]] = []
        self._waiting: list[tuple[int, int, Load]] = []
        self._at = 0
        self._left = _MOST
        for path in files:
            name = Path(path).name
            found = DUMP.fullmatch(name) or MAP.fullmatch(name)
            if found is None or int(found[1]) not in pids:
                continue
            if not self._has_room(path, _size(path)):
                continue
            images.jit_files[path] = files[path]
            if MAP.fullmatch(name):
                self._maps.append((int(found[1]), path))
            else:
                self._read(path)
        self._waiting.sort(key=lambda each: each[0])

    def until(self, time: int) -> None:
        """All up to a time (TSC) is applied."""
        while self._at < len(self._waiting) and self._waiting[self._at][0] <= time:
            when, pid, load = self._waiting[self._at]
            self._images.jit(when, pid, load.address, load.code, load.name)
            self._at += 1

    def finish(self) -> None:
        """All is applied, and maps name what nothing else does."""
        self.until((1 << 64) - 1)
        for pid, path in self._maps:
            try:
                self._images.named(pid, list(read_map(path, self._names[path])))
            except ImageError as error:
                self._lacks(path, str(error))

    def _has_room(self, path: str, size: int) -> bool:
        self._left -= size
        if self._left >= 0:
            return True
        message = f"more than {_MOST:,} bytes of code that programs made"
        self._lacks(path, message)
        return False

    def _lacks(self, path: str, message: str) -> None:
        self._images.lacks_jit(Problem("unreadable", self._names[path], message))

    def _read(self, path: str) -> None:
        try:
            dump = read_jitdump(path, self._names[path])
        except ImageError as error:
            self._lacks(path, str(error))
            return
        if dump.cut is not None:
            self._lacks(path, dump.cut)
        if not dump.in_ticks:
            self._lacks(path, "its times are no ticks of the TSC: code is that of its end")
        # what moves is there once more
        code = sum(len(load.code) for load in dump.loads)
        if not self._has_room(path, max(0, code - _size(path))):
            return
        self._waiting += [
            (load.time if dump.in_ticks else 0, dump.pid, load) for load in dump.loads
        ]


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0  # reading it says why
