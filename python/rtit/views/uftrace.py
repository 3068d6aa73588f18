"""A timeline as a data folder of uftrace, for `uftrace report`, `graph`, `replay` and `dump`.

The folder has the files of version 4 of the format (`uftrace.h` of uftrace):

* `info`: `struct uftrace_file_header`, and lines of text
* `task.txt`: the processes (`SESS`) and threads (`TASK`)
* `TID.dat`: the begins and ends of the calls of a thread, each a `struct uftrace_record`
* `sid-NUMBER.map`: the mappings of a process
* `functions.sym`: the names of functions

All functions are in one made-up mapping, in which each name has an address. So each function has
the name that rtit shows, also in stripped programs and in JIT code.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rtit.text_escaping import escape_control_characters
from rtit.views.timeline import iterate_tracks, process_name

if TYPE_CHECKING:
    from rtit.trace import Trace
    from rtit.views.timeline import Timeline, Track

FILE_PATTERNS = ("info", "task.txt", "*.dat", "*.map", "*.sym", "*.dbg", "default.opts")
"""Names of files that uftrace writes into such a folder."""
MAX_DEPTH = 1 << 10
"""Levels of calls: a record has 10 bits for the depth."""
_HEADER = struct.Struct("<8sIHBBQQHHI")
_MAGIC, _VERSION, _LITTLE_ENDIAN, _64_BIT = b"Ftrace!", 4, 1, 2
_TASK_SESSION, _SYM_REL_ADDR, _MAX_STACK = 1 << 1, 1 << 5, 1 << 6
"""Features: `task.txt` has sessions, `functions.sym` has offsets, the header has the depth."""
_EXE_NAME, _CMDLINE, _TASKINFO, _PROGRAM_VERSION = 1 << 0, 1 << 3, 1 << 7, 1 << 13
"""Lines of `info`."""
_MAX_COMMAND = 1000
"""Characters: uftrace reads at most 4,095 bytes of a line."""
_EXIT, _RECORD_MAGIC, _DEPTH_SHIFT, _ADDRESS_SHIFT = 1, 5 << 3, 6, 16
"""The second word of a record."""
_MODULE, _START, _FUNCTION_SIZE = "functions", 1 << 20, 16
_FIRST_TRACK_TID = (1 << 22) + 1
"""Thread number of the first track that is no thread: above all thread ids."""
_LEAVING_NAMES = re.compile("execl|execle|execlp|execv|execve|execvp|execvpe|.*longjmp(_chk)?")
"""Functions after which uftrace expects no ends of the functions that they leave."""


def uftrace_files(timeline: Timeline, trace: Trace, version: str) -> Iterator[tuple[str, bytes]]:
    """Iterate over the names of the files and their contents.

    `version`: name and version of the program that writes them.
    """
    processes: dict[int, str] = {}
    tasks: dict[int, int] = {}
    next_tid = _FIRST_TRACK_TID
    for track in iterate_tracks(timeline, trace):
        tid = max(track.tid, 0)
        pid = max(timeline.threads[track.tid].pid, 0)
        processes.setdefault(pid, process_name(trace, pid))
        if track.lane:
            tid, next_tid = next_tid, next_tid + 1
        tasks[tid] = pid
        yield f"{tid}.dat", _encode_records(track)
    yield f"{_MODULE}.sym", _symbol_file(timeline).encode()
    for pid in processes:
        yield f"sid-{_session_id(pid)}.map", _map_file(timeline).encode()
    yield "task.txt", _task_file(processes, tasks).encode()
    header = _HEADER.pack(
        _MAGIC,
        _VERSION,
        _HEADER.size,
        _LITTLE_ENDIAN,
        _64_BIT,
        _TASK_SESSION | _SYM_REL_ADDR | _MAX_STACK,
        _EXE_NAME | _CMDLINE | _TASKINFO | _PROGRAM_VERSION,
        MAX_DEPTH,
        0,
        0,
    )
    lines = (
        f"exename:{next(iter(processes.values()), '')}",
        f"cmdline:{escape_control_characters(' '.join(trace.command_line))[:_MAX_COMMAND]}",
        "taskinfo:lines=2",
        f"taskinfo:nr_tid={len(tasks)}",
        f"taskinfo:tids={','.join(map(str, tasks))}",
        f"uftrace_version:{'; '.join(filter(None, (version, timeline.note)))}",
    )
    yield "info", header + "".join(f"{line}\n" for line in lines).encode()


def _encode_records(track: Track) -> bytes:
    import numpy as np

    addresses = np.uint64(_START) + track.names * np.uint64(_FUNCTION_SIZE)
    words = addresses << np.uint64(_ADDRESS_SHIFT)
    words |= track.depths.astype(np.uint64) << np.uint64(_DEPTH_SHIFT)
    words |= np.where(track.is_begin, np.uint64(0), np.uint64(_EXIT)) | np.uint64(_RECORD_MAGIC)
    return np.stack([track.times, words], axis=1).astype("<u8").tobytes()


def _symbol_file(timeline: Timeline) -> str:
    lines = [f"# symbols: {len(timeline.names)}", f"# path name: {_MODULE}"]
    for name, number in timeline.names.items():
        # At the exact name, uftrace would drop the callers, but the records have their ends.
        suffix = " " if _LEAVING_NAMES.fullmatch(name) else ""
        lines.append(f"{number * _FUNCTION_SIZE:016x} T {name}{suffix}")
    lines.append(f"{len(timeline.names) * _FUNCTION_SIZE:016x} ? __sym_end")
    return "".join(f"{line}\n" for line in lines)


def _map_file(timeline: Timeline) -> str:
    end = _START + (len(timeline.names) * _FUNCTION_SIZE | 0xFFF) + 1
    # Without a stack, uftrace takes all addresses for those of the kernel.
    return (
        f"{_START:x}-{end:x} r-xp 00000000 00:00 0 {_MODULE}\n"
        "7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0 [stack]\n"
    )


def _task_file(processes: dict[int, str], tasks: dict[int, int]) -> str:
    start = "timestamp=0.000000000"
    lines = [
        f'SESS {start} pid={pid} sid={_session_id(pid)} exename="{name}"\n'
        for pid, name in processes.items()
    ]
    lines += [f"TASK {start} tid={tid} pid={pid}\n" for tid, pid in tasks.items()]
    return "".join(lines)


def _session_id(pid: int) -> str:
    return f"{pid:016x}"
