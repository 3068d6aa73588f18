"""Finds the perf maps in /tmp that belong to the processes of a recording.

A JIT compiler writes /tmp/perf-PID.map, and a later process can have the same pid. So the recorder
notes size and CRC-32 of each map when a recording ends, and a map is used only if it still begins
with the same bytes. A process that continues may append to its map.
"""

from __future__ import annotations

import os
import re
import stat
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from rtit.errors import ImageError
from rtit.image.jit_files import MAX_MAP_SIZE, open_regular_file

FOLDER = Path("/tmp")
FACT = "perf maps"
"""The name of the fact in a recording that has the stamps."""
_MAX_MAPS = 64
_STAMP = re.compile(r"perf-([0-9]{1,10})\.map of ([0-9]{1,10}) bytes with CRC-32 ([0-9a-f]{8})")
_SECOND = 1_000_000_000


class PerfMapStamp(NamedTuple):
    """Size and CRC-32 of a perf map."""

    size: int
    crc: int


def stamp_perf_maps(pids: Iterable[int], since: int) -> dict[int, PerfMapStamp]:
    """Return the stamps of the maps that these processes wrote, by pid.

    `since` is the start of the recording in nanoseconds since 1970: an older map is of an earlier
    process, unless the process started before the recording.
    """
    found: dict[int, PerfMapStamp] = {}
    for pid in pids:
        path = _path_of_perf_map(pid)
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            continue
        if changed >= since or changed >= _process_start(pid, since):
            stamp = _stamp_file(path, MAX_MAP_SIZE)
            if stamp is not None:
                found[pid] = stamp
        if len(found) >= _MAX_MAPS:
            break
    return found


def format_stamps(stamps: Mapping[int, PerfMapStamp]) -> str:
    """Return the stamps as a fact, which `parse_stamps` reads."""
    return ", ".join(
        f"perf-{pid}.map of {stamp.size} bytes with CRC-32 {stamp.crc:08x}"
        for pid, stamp in stamps.items()
    )


def parse_stamps(text: str) -> dict[int, PerfMapStamp]:
    """Return the stamps in a fact, by pid."""
    return {
        int(pid): PerfMapStamp(int(size), int(crc, 16)) for pid, size, crc in _STAMP.findall(text)
    }


def find_stamped_map(pid: int, stamp: PerfMapStamp) -> str | None:
    """Return the path of the map of process `pid`, if it still begins with the stamped bytes."""
    path = _path_of_perf_map(pid)
    is_same = stamp.size <= MAX_MAP_SIZE and _stamp_file(path, stamp.size) == stamp
    return str(path) if is_same else None


def find_map_of_time(pid: int, end: float) -> str | None:
    """Return the path of the map of process `pid` if nobody has written to it after `end`, the end
    of the recording in seconds since 1970.
    """
    path = _path_of_perf_map(pid)
    try:
        status = path.stat()
    except OSError:
        return None
    return str(path) if _is_trusted(status) and status.st_mtime <= end else None


def _path_of_perf_map(pid: int) -> Path:
    return FOLDER / f"perf-{pid}.map"


def _stamp_file(path: Path, size: int) -> PerfMapStamp | None:
    """Return the stamp of the first `size` bytes; None if the file cannot be used."""
    try:
        with open_regular_file(str(path), str(path)) as file:
            if not _is_trusted(os.fstat(file.fileno())):
                return None
            content = file.read(size)
    except (ImageError, OSError):
        return None
    return PerfMapStamp(len(content), zlib.crc32(content))


def _is_trusted(status: os.stat_result) -> bool:
    """Return whether this is a regular file that no other user wrote, as perf requires."""
    return stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid())


def _process_start(pid: int, default: int) -> int:
    """Return when a running process started, in nanoseconds since 1970."""
    try:
        # The name of the process, in parentheses, can have blanks.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        ticks = int(fields[19])
    except (OSError, ValueError, IndexError):
        return default
    since_boot = ticks * _SECOND // os.sysconf("SC_CLK_TCK")
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot - _SECOND
