"""The build backend: builds the QEMU plugin first, then leaves everything to maturin.

maturin builds one module a wheel. The plugin is a library of its own (QEMU cannot load a Python
module), so it travels as package data in `rtit/_plugin`. Where it cannot be built the wheel comes
without it, and `rtit doctor` says so.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import maturin
from maturin import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = "librtit_qemu.so"

build_sdist = maturin.build_sdist
prepare_metadata_for_build_wheel = maturin.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = maturin.prepare_metadata_for_build_editable


def build_plugin(profile: str = "release") -> Path | None:
    """Build the plugin with a profile of Cargo into the package and return its path.

    Return None on a platform that cannot use it.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    cargo = ["cargo", "rustc", "--profile", profile, "--quiet", "--package", "rtit-qemu", "--lib"]
    subprocess.run([*cargo, "--", "-C", "strip=symbols"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    place = ROOT / "python" / "rtit" / "_plugin" / PLUGIN
    place.parent.mkdir(exist_ok=True)
    # A new file in the place of the old: a QEMU that runs keeps the one it has mapped.
    fresh = place.with_suffix(".new")
    shutil.copyfile(target / profile / PLUGIN, fresh)
    fresh.replace(place)
    return place


def build_wheel(directory: str, settings: Any = None, metadata: str | None = None) -> str:
    """PEP 517."""
    build_plugin()
    return str(maturin.build_wheel(directory, settings, metadata))


def build_editable(directory: str, settings: Any = None, metadata: str | None = None) -> str:
    """PEP 660."""
    build_plugin()
    return str(maturin.build_editable(directory, settings, metadata))


if __name__ == "__main__":
    print(build_plugin(*sys.argv[1:]) or "no plugin on this platform")
