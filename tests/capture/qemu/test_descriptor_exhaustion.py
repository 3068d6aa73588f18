"""Where the recorder itself has no file left."""

from __future__ import annotations

import errno
import gc
import os
import socket
from pathlib import Path

import pytest

from rtit.capture.events import EVENT_RECORD
from rtit.capture.qemu.counting import CountSession, CountSink
from rtit.capture.qemu.plugin_protocol import PluginMessage
from rtit.capture.qemu.qemu_process import OpenFileLimit


def count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def no_more(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_reserve_descriptor_returns_after_descriptors_ran_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may take the last file: nothing is raised, and later there is one again."""
    gc.collect()  # what other tests have left open
    files = OpenFileLimit()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        listener.setblocking(False)
        before = count()
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", no_more)
            files.reject_connection(listener)
            files.reject_connection(listener)
            without = count()
        files.reject_connection(listener)
        after = count()
    files.close()
    assert (without, after) == (before - 1, before)


def test_dropped_counts_file_is_reported_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports that it dropped a record; the warning names the process."""
    message = EVENT_RECORD.pack(PluginMessage.COUNTS, 0, 0, 7, 7, 0, 0, 0)
    dropped: tuple[bytes, list[int], int, None] = (message, [], socket.MSG_CTRUNC, None)
    monkeypatch.setattr(socket, "recv_fds", lambda *_: dropped)
    sink = CountSink(lambda file: {})
    session = CountSession.__new__(CountSession)
    session._count_sink = sink
    one, other = socket.socketpair()
    with one, other:
        assert bytes(session._receive_message(one)) == message
    sink.close()
    assert sink.totals.warnings == ["process 7 is not counted: too many open files"]
