"""The protocol between recorder and plugin: messages, and settings as `name=value` lines."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from enum import IntEnum
from time import time_ns
from typing import TYPE_CHECKING

from rtit.capture.options import PtOptions
from rtit.capture.request import RecordWindow, SizeLimits, WindowEdge
from rtit.capture.session import COMPRESS_AFTER_PSB
from rtit.unit.time_model import TimeModel


class PluginMessage(IntEnum):
    """Kinds of the plugin's messages besides the capture events."""

    HELLO = 40
    """A process connects; ip: its pid. The recorder replies with one byte."""
    PACKETS = 41
    """Packets of the thread's trace unit."""
    TRUTH = 42
    """Records of a truth file."""
    TRACED = 43
    """target, extra: traced instructions and branches of the thread so far."""
    COUNTS = 44
    """With a file: the counts of process `ip`. Without: the thread, which goes on in another
    program, has executed `target` instructions in this one."""
    MODULE = 45
    """A kernel initializes a module: lines with its name, then its functions."""
    MAPPING = 46
    """The kernel maps executable memory from `ip` up to `extra` in the page table of page `target`;
    with a file's `OFFSET INITIAL PATH`. INITIAL is 1 in the initial file system."""
    NEW_PROCESS = 47
    """The running thread has created process `target`, with the page table in page `ip`."""
    THREAD_NAME = 48
    """Thread `extra` of process `target` has a new name; COMM_BY_EXEC: it begins a program, with
    the page table in page `ip`."""
    COMPARED = 49
    """At the end: how often a value of QEMU's log was compared with the state of the processor
    (target), and how often they differed (extra); with the name of the value."""


if TYPE_CHECKING:
    from rtit.perfdata.filters import AddressFilter

# Offsets in the page that the processes share: clock, snapshot request, window phase.
SNAPSHOT_REQUEST_OFFSET = 8
_WINDOW_PHASE_OFFSET = 16
_CLOCK_LAG_NS = 2_000_000_000
"""Nanoseconds by which a file system's clock may lag: a file that changed this long before the
recording began may have changed after."""
RUN_AHEAD = "RTIT_RUN_AHEAD"
"""Environment variable for tests: blocks per chunk of the ring in which a program runs ahead of its
packets. 0: packets are made while blocks run.
"""


def plugin_settings(
    options: PtOptions,
    truth: str,
    min_run_instructions: int,
    filters: Sequence[AddressFilter],
    window: RecordWindow,
    size_limits: SizeLimits,
    time: TimeModel,
) -> str:
    """Return the text of the settings file.

    `truth` is `none`, `blocks` or `instructions`; `min_run_instructions` is the least number of
    instructions in a run of the truth file.
    """
    lines = [
        f"ctl={options.rtit_ctl}",
        f"truth={truth}",
        f"joined={min_run_instructions}",
        f"snapshot={int(size_limits.snapshot is not None)}",
        f"ahead={os.environ.get(RUN_AHEAD) or 'auto'}",
        f"cpi={time.cpi}",
        f"core_ratio={time.core_ratio}",
        f"compress_after_psb={int(COMPRESS_AFTER_PSB)}",
        f"began={time_ns() - _CLOCK_LAG_NS}",
        f"view={_filesystem_view()}",
    ]
    for each in filters:
        if each.path:
            part = _format_file_range(each.offset, each.size, each.path)
            lines.append(f"filter={each.action} {part}")
        else:
            addresses = f"{each.offset} {each.offset + each.size - 1} {int(each.is_linked)}"
            lines.append(f"system_filter={each.action} {addresses}")
    for name, edge in (("start", window.start), ("stop", window.stop)):
        if edge is not None and edge.path == "":
            lines.append(f"system_{name}={edge.offset} {int(edge.is_linked)}")
        elif edge is not None:
            lines.append(f"{name}={_format_edge(edge)}")
    return "".join(f"{line}\n" for line in lines)


def _filesystem_view() -> str:
    """Return our mount namespace and root directory, as `filesystem_view` of the plugin does."""
    try:
        root = os.stat("/")  # noqa: PTH116 - what the plugin does
        return f"{os.readlink('/proc/self/ns/mnt')} {root.st_dev} {root.st_ino}"  # noqa: PTH115
    except OSError:
        return ""


def window_edges_passed(words: bytes, window: RecordWindow) -> int:
    """Return how many edges of the window were passed, from the shared words of the processes."""
    (phase,) = struct.unpack_from("<Q", words, _WINDOW_PHASE_OFFSET)
    return max(int(phase), int(window.start is None))


def _format_edge(edge: WindowEdge) -> str:
    if edge.path is not None:
        return f"at {_format_file_range(edge.offset, edge.size, edge.path)}"
    return f"{'plus' if edge.relative else 'after'} {edge.count}"


def _format_file_range(offset: int, size: int, path: str) -> str:
    """Return decimal numbers and the path in hexadecimal, as it may have any bytes."""
    return f"{offset} {size} {os.fsencode(path).hex()}"
