"""Unwinds the stack at the end of a recording. Run by gdb, in gdb's own Python.

gdb has the callers of traced instructions from the trace. At the end of the trace it would unwind
the stack, which is not recorded. This unwinder asks the server which calls had not returned.
"""
# mypy: ignore-errors
# gdb's modules exist in gdb only.

from gdb.unwinder import Unwinder, register_unwinder

import gdb

_FAKE_STACK = 0x7EC0_0000_0000_0000
"""Addresses that no program uses: each frame has one slot there, which identifies it."""
_SLOT_BYTES = 16
_MAX_THREADS = 64


class _FrameId:
    """Identifies a frame for gdb."""

    def __init__(self, sp, pc):
        self.sp, self.pc = sp, pc


class TraceUnwinder(Unwinder):
    """Unwinds frames of the threads of one connection."""

    def __init__(self, connection):
        super().__init__("rtit callers")
        # Requested now: a request while gdb unwinds invalidates its frames.
        threads = gdb.selected_inferior().threads()[:_MAX_THREADS]
        tids = {_thread_id(each) for each in [*threads, gdb.selected_thread()]}
        self._return_addresses = {tid: _request_return_addresses(connection, tid) for tid in tids}

    def __call__(self, pending):
        """Return how to unwind this frame; None for a frame of other unwinders."""
        return_addresses = self._return_addresses.get(_thread_id(gdb.selected_thread()), [])
        depth = 0
        if pending.level():
            try:
                depth = (int(pending.read_register("rsp")) - _FAKE_STACK) // _SLOT_BYTES
            except gdb.error:
                return None
        if not 0 <= depth <= len(return_addresses):
            return None
        address = pending.read_register("rip")
        frame = pending.create_unwind_info(
            _FrameId(gdb.Value(_FAKE_STACK + depth * _SLOT_BYTES), address)
        )
        if depth < len(return_addresses):
            frame.add_saved_register("rip", gdb.Value(return_addresses[depth]))
            frame.add_saved_register("rsp", gdb.Value(_FAKE_STACK + (depth + 1) * _SLOT_BYTES))
        return frame


def _thread_id(thread):
    return thread.ptid[1] or thread.ptid[2]


def _request_return_addresses(connection, tid):
    reply = connection.send_packet("qRcmd," + f"callers {tid}".encode().hex())
    if reply == b"OK" or reply.startswith(b"E"):
        return []
    return [int(line, 16) for line in bytes.fromhex(reply.decode()).split()]


def _register_unwinder():
    connection = getattr(gdb.selected_inferior(), "connection", None)
    if hasattr(connection, "send_packet") and gdb.selected_thread() is not None:
        register_unwinder(None, TraceUnwinder(connection), replace=True)


_register_unwinder()
