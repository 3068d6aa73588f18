"""Logs of Griffin's kernel: PT of each thread, and the pages of code that it could run.

A log is a header (magic, version) and items, each with its kind and size, without a place or a
time: what comes first was first. Packets have no TSC there, so that all code counts from the start
on; of pages that are told twice the last counts.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rtit.errors import InputError

MAGIC, VERSION = 0x51C0FFEE, 1
_FILE = struct.Struct("<II")
_ITEM = struct.Struct("<II")
_BUFFER = struct.Struct("<QQQQ")
_NAMED = struct.Struct("<QQ")
_PAGES = struct.Struct("<QQQ")
_FORK = struct.Struct("<QQQQ")
_LAST_ADDRESS = 1 << 63
_LAST_NUMBER = 1 << 31
_BUFFER_KIND, _PROCESS_KIND, _THREAD_KIND, _, _PAGES_KIND, _, _FORK_KIND = range(7)


class Pages(NamedTuple):
    """`data` is at `address` of process `pid`."""

    pid: int
    address: int
    data: memoryview


class Fork(NamedTuple):
    """Thread `ptid` of process `ppid` made process `pid`."""

    ppid: int
    ptid: int
    pid: int
    tid: int


@dataclass(slots=True)
class Log:
    """All of a log: `threads` (tid -> pid), the packets of each (sequence, bytes) by tid; `names`
    of processes. `told` has pages and forks in order. `incomplete`: why it ends early.
    """

    threads: dict[int, int] = field(default_factory=dict)
    packets: dict[int, list[tuple[int, memoryview]]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    told: list[Pages | Fork] = field(default_factory=list)
    incomplete: str | None = None

    def stream(self, tid: int) -> Iterator[memoryview]:
        """The packets of a thread, in the order in which they were written."""
        for _, data in sorted(self.packets[tid], key=lambda each: each[0]):
            yield data


def read_log(data: memoryview, source: str) -> Log:
    """Read a log, of which nothing is copied. Raises InputError for what is none, or contradicts
    itself.
    """
    if len(data) < _FILE.size or _FILE.unpack_from(data)[0] != MAGIC:
        raise InputError("no log of Griffin", source=source, offset=0)
    version = _FILE.unpack_from(data)[1]
    if version != VERSION:
        raise InputError("a log of an unknown version", source=source, offset=4, value=version)
    log, at = Log(), _FILE.size
    while at < len(data):
        if len(data) - at < _ITEM.size:
            log.incomplete = f"it ends within an item at offset {at:#x}"
            break
        kind, size = _ITEM.unpack_from(data, at)
        if size < _ITEM.size:
            raise InputError("bad size of an item", source=source, offset=at, value=size)
        if size > len(data) - at:
            log.incomplete = f"it ends within an item at offset {at:#x}"
            break
        try:
            _take(log, kind, data[at + _ITEM.size : at + size])
        except (struct.error, ValueError) as error:
            raise InputError(
                f"bad item of kind {kind}: {error}", source=source, offset=at
            ) from None
        at += size
    return log


def _take(log: Log, kind: int, body: memoryview) -> None:
    if kind == _BUFFER_KIND:
        tgid, pid, sequence, size = _BUFFER.unpack_from(body)
        log.threads[_number(pid)] = _number(tgid)
        log.packets.setdefault(pid, []).append((sequence, _behind(body, _BUFFER.size, size)))
    elif kind == _PROCESS_KIND:
        tgid, size = _NAMED.unpack_from(body)
        name = bytes(_behind(body, _NAMED.size, size)).split(b"\0")[0]
        log.names[_number(tgid)] = os.path.basename(os.fsdecode(name))[:15]  # noqa: PTH119 - a name
    elif kind == _THREAD_KIND:
        tgid, pid = _NAMED.unpack_from(body)
        log.threads[_number(pid)] = _number(tgid)
    elif kind == _PAGES_KIND:
        tgid, base, size = _PAGES.unpack_from(body)
        if base + size > _LAST_ADDRESS:
            raise ValueError(f"pages at {base:#x}")
        log.told.append(Pages(_number(tgid), base, _behind(body, _PAGES.size, size)))
    elif kind == _FORK_KIND:
        log.told.append(Fork(*map(_number, _FORK.unpack_from(body))))


def _behind(body: memoryview, start: int, size: int) -> memoryview:
    if size > len(body) - start:
        raise ValueError(f"{size:#x} bytes in {len(body) - start:#x}")
    return body[start : start + size]


def _number(value: int) -> int:
    if not 0 < value < _LAST_NUMBER:
        raise ValueError(f"no process or thread has the number {value:#x}")
    return value
