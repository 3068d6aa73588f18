"""The protocol between recorder and plugin: messages, and settings as `name=value` lines."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from enum import IntEnum
from time import time_ns
from typing import TYPE_CHECKING

from rtit.capture.options import PtOptions
from rtit.capture.record_window import RecordWindow, WindowEdge
from rtit.capture.recording import COMPRESS_AFTER_PSB
from rtit.capture.store.size_limits import SizeLimits
from rtit.unit.time_model import TimeModel


class PluginMessage(IntEnum):
    """Kinds of the messages of the plugin that are no capture events."""

    HELLO = 40
    """A process connects; ip: its pid. The recorder answers with one byte."""
    PACKETS = 41
    """Packets of the thread's trace unit."""
    TRUTH = 42
    """Records of a truth file."""
    TRACED = 43
    """target, extra: traced instructions and branches of the thread so far."""
    COUNTS = 44
    """With a file: the counts of process `ip`. Without: the thread, which goes on in another
    program, has executed `target` instructions in this one."""


if TYPE_CHECKING:
    from rtit.perfdata.filters import AddressFilter

# The processes' shared words: clock, what the recorder asks for, phase.
SNAPSHOT_REQUEST_OFFSET = 8
_WINDOW_PHASE_OFFSET = 16
CLOCKS_ARE_LATE = 2_000_000_000
"""Nanoseconds: what changed so long before the recording began may have changed after it."""
RUN_AHEAD = "RTIT_RUN_AHEAD"
"""In the environment, for tests: how many blocks a chunk of the ring has, in which a program runs
ahead of its packets. 0: they are made as blocks run.
"""


def plugin_settings(
    options: PtOptions,
    truth: str,
    joined: int,
    filters: Sequence[AddressFilter],
    window: RecordWindow,
    size_limits: SizeLimits,
    time: TimeModel,
) -> str:
    """The file's text. `truth` is none, blocks or instructions; `joined` the least instructions of
    one of its runs.
    """
    lines = [
        f"ctl={options.rtit_ctl}",
        f"truth={truth}",
        f"joined={joined}",
        f"snapshot={int(size_limits.snapshot is not None)}",
        f"ahead={os.environ.get(RUN_AHEAD) or 'auto'}",
        f"cpi={time.cpi}",
        f"core_ratio={time.core_ratio}",
        f"compress_after_psb={int(COMPRESS_AFTER_PSB)}",
        f"began={time_ns() - CLOCKS_ARE_LATE}",
        f"view={_filesystem_view()}",
    ]
    lines += [
        f"filter={each.action} {_format_file_range(each.offset, each.size, each.path)}"
        for each in filters
    ]
    for name, edge in (("start", window.start), ("stop", window.stop)):
        if edge is not None:
            lines.append(f"{name}={_format_edge(edge)}")
    return "".join(f"{line}\n" for line in lines)


def _filesystem_view() -> str:
    """Our mount namespace and root directory, as `maps.rs` writes them."""
    try:
        root = os.stat("/")  # noqa: PTH116 - what the plugin does
        return f"{os.readlink('/proc/self/ns/mnt')} {root.st_dev} {root.st_ino}"  # noqa: PTH115
    except OSError:
        return ""


def edges_passed(words: bytes, window: RecordWindow) -> int:
    """Return how many edges of the window were passed, from the shared words of the processes."""
    (phase,) = struct.unpack_from("<Q", words, _WINDOW_PHASE_OFFSET)
    return max(int(phase), int(window.start is None))


def _format_edge(edge: WindowEdge) -> str:
    if edge.path is not None:
        return f"at {_format_file_range(edge.offset, edge.size, edge.path)}"
    return f"{'plus' if edge.relative else 'after'} {edge.count}"


def _format_file_range(offset: int, size: int, path: str) -> str:
    """Numbers in decimal; the path's bytes in hexadecimal, as they need not be text."""
    return f"{offset} {size} {os.fsencode(path).hex()}"
