"""The QEMU back end: `find.py` finds a QEMU, `start.py` starts a program in it, `session.py`
drives the recording, `sink.py` takes what the plugin says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.lazy import exports

if TYPE_CHECKING:
    from rtit.capture.qemu.find import Found, find_qemu
    from rtit.capture.qemu.session import QemuSession
    from rtit.capture.qemu.start import start_qemu

__all__ = ["Found", "QemuSession", "find_qemu", "start_qemu"]

__getattr__ = exports(
    __name__, {"find": "Found find_qemu", "session": "QemuSession", "start": "start_qemu"}
)
