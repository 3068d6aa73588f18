"""Logs of Griffin's kernel module: the PT packets of each thread, and the code pages it could run.

A log is a header (magic, version) and items. An item has a kind and a size but no time; items are
in the order in which they were written. The packets have no TSC either, so all code pages count
from the start of the trace; if a page occurs twice, the last one counts.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rtit.errors import InputError

MAGIC, VERSION = 0x51C0FFEE, 1
_FILE_HEADER = struct.Struct("<II")
_ITEM_HEADER = struct.Struct("<II")
_BUFFER = struct.Struct("<QQQQ")
_PROCESS = struct.Struct("<QQ")
_PAGES = struct.Struct("<QQQ")
_FORK = struct.Struct("<QQQQ")
_MAX_ADDRESS = 1 << 63
_MAX_ID = 1 << 31
_BUFFER_KIND, _PROCESS_KIND, _THREAD_KIND, _, _PAGES_KIND, _, _FORK_KIND = range(7)


class CodePages(NamedTuple):
    """`data` is at `address` of process `pid`."""

    pid: int
    address: int
    data: memoryview


class ProcessFork(NamedTuple):
    """Thread `ptid` of process `ppid` forked process `pid`."""

    ppid: int
    ptid: int
    pid: int
    tid: int


@dataclass(slots=True)
class GriffinLog:
    """The contents of a log. The data is not copied."""

    threads: dict[int, int] = field(default_factory=dict)
    """tid -> pid."""
    packets: dict[int, list[tuple[int, memoryview]]] = field(default_factory=dict)
    """tid -> (sequence number, packets) of each of its buffers."""
    names: dict[int, str] = field(default_factory=dict)
    """pid -> name of the program."""
    memory_events: list[CodePages | ProcessFork] = field(default_factory=list)
    """In the order of the log."""
    incomplete: str | None = None
    """Why the log ends early; None if it is complete."""

    def thread_packets(self, tid: int) -> Iterator[memoryview]:
        """Yield the packets of a thread, in the order in which they were written."""
        for _, data in sorted(self.packets[tid], key=lambda each: each[0]):
            yield data


def read_griffin_log(data: memoryview, source: str) -> GriffinLog:
    """Return the contents of a log. Raises InputError if it is none or contradicts itself."""
    if len(data) < _FILE_HEADER.size or _FILE_HEADER.unpack_from(data)[0] != MAGIC:
        raise InputError("not a log of Griffin", source=source, offset=0)
    version = _FILE_HEADER.unpack_from(data)[1]
    if version != VERSION:
        raise InputError("a log of an unknown version", source=source, offset=4, value=version)
    log, at = GriffinLog(), _FILE_HEADER.size
    while at < len(data):
        if len(data) - at < _ITEM_HEADER.size:
            log.incomplete = f"it ends within an item at offset {at:#x}"
            break
        kind, size = _ITEM_HEADER.unpack_from(data, at)
        if size < _ITEM_HEADER.size:
            raise InputError("bad size of an item", source=source, offset=at, value=size)
        if size > len(data) - at:
            log.incomplete = f"it ends within an item at offset {at:#x}"
            break
        try:
            _add_log_item(log, kind, data[at + _ITEM_HEADER.size : at + size])
        except (struct.error, ValueError) as error:
            raise InputError(
                f"bad item of kind {kind}: {error}", source=source, offset=at
            ) from None
        at += size
    return log


def _add_log_item(log: GriffinLog, kind: int, body: memoryview) -> None:
    if kind == _BUFFER_KIND:
        pid, tid, sequence, size = _BUFFER.unpack_from(body)
        log.threads[_check_process_id(tid)] = _check_process_id(pid)
        log.packets.setdefault(tid, []).append(
            (sequence, _slice_packet_payload(body, _BUFFER.size, size))
        )
    elif kind == _PROCESS_KIND:
        pid, size = _PROCESS.unpack_from(body)
        path = os.fsdecode(bytes(_slice_packet_payload(body, _PROCESS.size, size)).split(b"\0")[0])
        log.names[_check_process_id(pid)] = os.path.basename(path)[:15]  # noqa: PTH119 - a name
    elif kind == _THREAD_KIND:
        pid, tid = _PROCESS.unpack_from(body)
        log.threads[_check_process_id(tid)] = _check_process_id(pid)
    elif kind == _PAGES_KIND:
        pid, base, size = _PAGES.unpack_from(body)
        if base + size > _MAX_ADDRESS:
            raise ValueError(f"pages at {base:#x}")
        pages = CodePages(
            _check_process_id(pid), base, _slice_packet_payload(body, _PAGES.size, size)
        )
        log.memory_events.append(pages)
    elif kind == _FORK_KIND:
        log.memory_events.append(ProcessFork(*map(_check_process_id, _FORK.unpack_from(body))))


def _slice_packet_payload(body: memoryview, start: int, size: int) -> memoryview:
    if size > len(body) - start:
        raise ValueError(f"{size:#x} bytes in {len(body) - start:#x}")
    return body[start : start + size]


def _check_process_id(value: int) -> int:
    if not 0 < value < _MAX_ID:
        raise ValueError(f"{value:#x} is not the id of a process or thread")
    return value
