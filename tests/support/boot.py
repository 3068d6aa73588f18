"""Boots of Linux under QEMU: finds a kernel, makes its initial file system, and builds modules."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

QEMU = "qemu-system-x86_64"
BUSYBOX = Path("/bin/busybox")
KERNEL_VARIABLE = "RTIT_TEST_KERNEL"
"""Environment variable with the path of a bzImage."""
HEADERS_VARIABLE = "RTIT_TEST_KERNEL_HEADERS"
"""Environment variable with the folder of unpacked linux-headers and linux-kbuild packages."""
QEMU_VARIABLE = "RTIT_TEST_QEMU_SYSTEM"
"""Environment variable with the path of another qemu-system-x86_64 than that of PATH."""
APPEND = "console=ttyS0 quiet panic=-1 cryptomgr.notests"
"""The self-tests of ciphers are two thirds of a boot."""


def find_kernel() -> Path:
    """Return a bzImage; skip the test if there is none, or nothing to boot it with."""
    _use_given_emulator()
    if shutil.which(QEMU) is None:
        pytest.skip(f"{QEMU} is not installed (Debian: qemu-system-x86)")
    if not BUSYBOX.is_file():
        pytest.skip(f"{BUSYBOX} does not exist (Debian: busybox-static)")
    given = os.environ.get(KERNEL_VARIABLE)
    found = [Path(given)] if given else sorted(Path("/boot").glob("vmlinuz-*-cloud-amd64"))
    if not found:
        pytest.skip(f"no kernel: /boot has no cloud kernel, and {KERNEL_VARIABLE} is not set")
    return found[-1]


@cache
def _use_given_emulator() -> None:
    """Put the folder of the emulator that QEMU_VARIABLE names first in PATH."""
    emulator = os.environ.get(QEMU_VARIABLE)
    if emulator is not None:
        assert Path(emulator).name == QEMU, f"{QEMU_VARIABLE} is not the path of a {QEMU}"
        os.environ["PATH"] = f"{Path(emulator).parent}{os.pathsep}{os.environ['PATH']}"


def build_module(folder: Path, name: str, source: str) -> bytes:
    """Return the file of a module of the kernel; skip the test if it cannot be built."""
    kernel, given = find_kernel(), os.environ.get(HEADERS_VARIABLE)
    if not given:
        pytest.skip(f"no headers of the kernel: {HEADERS_VARIABLE} is not set")
    release = kernel.name.removeprefix("vmlinuz-")
    headers = Path(given, "usr/src", f"linux-headers-{release}")
    common = headers.with_name(f"linux-headers-{release.removesuffix('-cloud-amd64')}-common")
    # The package's Makefile has the path at which it is installed.
    build, module = folder / "build", folder / "module"
    build.mkdir()
    module.mkdir()
    for each in headers.iterdir():
        if each.name != "Makefile":
            (build / each.name).symlink_to(each.resolve())
    (build / "Makefile").write_text(f"include {common}/Makefile\n")
    (module / f"{name}.c").write_text(source)
    # Functions have one part: none is split off as "NAME.cold".
    flags = "ccflags-y := -fno-reorder-blocks-and-partition"
    (module / "Kbuild").write_text(f"obj-m += {name}.o\n{flags}\n")
    made = subprocess.run(
        ["make", "-C", str(build), f"M={module}", "modules"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return (module / f"{name}.ko").read_bytes()


def archive_of_folder(folder: Path) -> bytes:
    """Return a cpio archive of a folder, by the program `cpio`; skip the test without it."""
    if shutil.which("cpio") is None:
        pytest.skip("cpio is not installed")
    names = [str(each.relative_to(folder)) for each in sorted(folder.rglob("*"))]
    made = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"],
        cwd=folder,
        input="\n".join([".", *names]).encode(),
        capture_output=True,
        check=True,
    )
    return made.stdout


def write_initrd(path: Path, script: str, files: Mapping[str, bytes] | None = None) -> None:
    """Write an initial file system with busybox that runs `script` and powers off.

    `files` has the contents of more files, by path.
    """
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
    folders = {str(folder) for name in files or () for folder in Path(name).parents}
    for folder in sorted(folders - {".", "bin", "dev", "proc"}):
        add(folder, stat.S_IFDIR | 0o755)
    for name, contents in (files or {}).items():
        add(name, stat.S_IFREG | 0o755, contents)
    add("TRAILER!!!", 0)
    path.write_bytes(archive)
