"""`import rtit` loads next to nothing; the public names are these."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import rtit


def test_import_is_light() -> None:
    script = (
        "import sys; before = set(sys.modules); import rtit; print(*(set(sys.modules) - before))"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )
    assert set(ended.stdout.split()) <= {"rtit", "__future__"}


def test_public_names() -> None:
    assert dir(rtit) == ["Recording", "Trace", "__version__", "record", "scenario"]
    for name in dir(rtit):
        assert getattr(rtit, name) is not None


@pytest.mark.parametrize("package", ["capture", "image", "perfdata", "sideband", "trace", "unit"])
def test_names_loaded_on_use_are_all_there(package: str) -> None:
    module = import_module(f"rtit.{package}")
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_recording_with_qemu_loads_no_trace_unit() -> None:
    modules = "sys, rtit.cli.record, rtit.capture.backends, rtit.capture.qemu"
    ended = subprocess.run(
        [sys.executable, "-I", "-c", f"import {modules}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(ended.stdout.split())
    assert not {name for name in loaded if name.startswith(("rtit.processor", "rtit.packets"))}
    plain = {"rtit.unit.parameters", "rtit.unit.time_model"}
    assert {name for name in loaded if name.startswith("rtit.unit.")} == plain
    assert not {"numpy", "rtit.trace", "rtit.perfdata.reader", "rtit.image.images"} & loaded
