"""Recording of a whole system: the boot of a Linux kernel to poweroff."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import clock
import recording

SCRIPT = "busybox mount -t proc proc /proc\nbusybox echo of 1 | busybox sed s/of/line/"
_PLUGIN_VERSION = 1
"""Version of the plugin interface of QEMU 7.2."""


def measure_boot(folder: Path, repetitions: int) -> dict[str, Any] | None:
    """Measure a boot of the kernel that RTIT_TEST_KERNEL names; return None without one.

    Returns {"instructions", "bytes", "qemu_seconds", "empty_seconds", "seconds"}: medians of CPU
    time of QEMU, of QEMU with a plugin that does nothing at each block, and of the recording with
    the default event. They run alternately.
    """
    from rtit.capture.qemu.system import KernelBoot
    from rtit.trace import Trace
    from support.boot import APPEND, KERNEL_VARIABLE, QEMU, write_initrd

    kernel = os.environ.get(KERNEL_VARIABLE)
    if kernel is None or shutil.which(QEMU) is None:
        print(f"without a boot: {KERNEL_VARIABLE} is not set, or {QEMU} is not installed")
        return None
    initrd, output = folder / "initrd", folder / "boot.data"
    write_initrd(initrd, SCRIPT)
    qemu = KernelBoot(kernel, str(initrd), APPEND).command()
    empty = recording.build_empty_plugin(folder, _PLUGIN_VERSION)
    record = [sys.executable, "-m", "rtit", "record", "-q", "-o", str(output), "--system"]
    commands: dict[str, list[str | Path]] = {
        "qemu_seconds": [*qemu],
        "empty_seconds": [*qemu, "-plugin", empty],
        "seconds": [*record, "--kernel", kernel, "--initrd", str(initrd), "--append", APPEND],
    }
    measured: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repetitions):
        for name, words in commands.items():
            measured[name].append(clock.process_cpu(words))
    with Trace(output) as trace:
        [stream] = trace.streams
        instructions, size = stream.counts().instructions, stream.size
    medians = {name: statistics.median(each) for name, each in measured.items()}
    return {"instructions": instructions, "bytes": size, **medians}
