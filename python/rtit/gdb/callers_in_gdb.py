"""Run by gdb, in its own Python: the callers of where a recording ends.

While gdb goes back and forth in a trace it has them from there. At the very end it would unwind the
stack, of which nothing was recorded; here the server says which calls were open.
"""
# mypy: ignore-errors
# gdb's modules are nowhere but in gdb.

from gdb.unwinder import Unwinder, register_unwinder

import gdb

_STACK = 0x7EC0_0000_0000_0000
"""No program's: one made-up slot a frame stands for its place."""
_SLOT = 16
_THREADS = 64


class _Frame:
    """What gdb tells frames apart by."""

    def __init__(self, sp, pc):
        self.sp, self.pc = sp, pc


class Callers(Unwinder):
    """Frames of the threads of one connection."""

    def __init__(self, connection):
        super().__init__("rtit callers")
        # Asked for at once: who asks while gdb unwinds takes its frames away.
        threads = gdb.selected_inferior().threads()[:_THREADS]
        tids = {_tid(each) for each in [*threads, gdb.selected_thread()]}
        self._known = {tid: _callers(connection, tid) for tid in tids}

    def __call__(self, pending):
        """How to unwind this frame, None if that is not for us to say."""
        callers = self._known.get(_tid(gdb.selected_thread()), [])
        at = 0
        if pending.level():
            try:
                at = (int(pending.read_register("rsp")) - _STACK) // _SLOT
            except gdb.error:
                return None
        if not 0 <= at <= len(callers):
            return None
        address = pending.read_register("rip")
        frame = pending.create_unwind_info(_Frame(gdb.Value(_STACK + at * _SLOT), address))
        if at < len(callers):
            frame.add_saved_register("rip", gdb.Value(callers[at]))
            frame.add_saved_register("rsp", gdb.Value(_STACK + (at + 1) * _SLOT))
        return frame


def _tid(thread):
    return thread.ptid[1] or thread.ptid[2]


def _callers(connection, tid):
    answer = connection.send_packet("qRcmd," + f"callers {tid}".encode().hex())
    if answer == b"OK" or answer.startswith(b"E"):
        return []
    return [int(line, 16) for line in bytes.fromhex(answer.decode()).split()]


def _register():
    connection = getattr(gdb.selected_inferior(), "connection", None)
    if hasattr(connection, "send_packet") and gdb.selected_thread() is not None:
        register_unwinder(None, Callers(connection), replace=True)


_register()
