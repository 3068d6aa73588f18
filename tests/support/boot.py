"""Boots of Linux under QEMU: finds a kernel, and makes its initial file system."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

QEMU = "qemu-system-x86_64"
BUSYBOX = Path("/bin/busybox")
KERNEL_VARIABLE = "RTIT_TEST_KERNEL"
"""Environment variable with the path of a bzImage."""
APPEND = "console=ttyS0 quiet panic=-1 cryptomgr.notests"
"""The self-tests of ciphers are two thirds of a boot."""


def find_kernel() -> Path:
    """Return a bzImage; skip the test if there is none, or nothing to boot it with."""
    if shutil.which(QEMU) is None:
        pytest.skip(f"{QEMU} is not installed (Debian: qemu-system-x86)")
    if not BUSYBOX.is_file():
        pytest.skip(f"{BUSYBOX} does not exist (Debian: busybox-static)")
    given = os.environ.get(KERNEL_VARIABLE)
    found = [Path(given)] if given else sorted(Path("/boot").glob("vmlinuz-*-cloud-amd64"))
    if not found:
        pytest.skip(f"no kernel: /boot has no cloud kernel, and {KERNEL_VARIABLE} is not set")
    return found[-1]


def write_initrd(path: Path, script: str) -> None:
    """Write an initial file system with busybox that runs `script` and powers off."""
    archive = bytearray()

    def add(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0)
        archive.extend(b"070701" + b"".join(b"%08X" % value for value in fields))
        for part in (name.encode() + b"\0", data):
            archive.extend(part)
            archive.extend(bytes(-len(archive) % 4))

    init = f"#!/bin/busybox sh\nPATH=/bin\n{script}\nbusybox poweroff -f\n"
    for folder in ("bin", "dev", "proc"):
        add(folder, stat.S_IFDIR | 0o755)
    add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    add("bin/busybox", stat.S_IFREG | 0o755, BUSYBOX.read_bytes())
    add("init", stat.S_IFREG | 0o755, init.encode())
    add("TRAILER!!!", 0)
    path.write_bytes(archive)
