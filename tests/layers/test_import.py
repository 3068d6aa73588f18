"""`import rtit` loads next to nothing; the public names are these."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import rtit
import rtit.errors
from rtit.cli.commands import COMMANDS
from rtit.perfdata import Writer
from support.streams import SYNC


def loaded(*modules: str) -> set[str]:
    """What importing these loads into a fresh interpreter."""
    package = str(Path(rtit.__file__).parent.parent)
    script = (
        f"import sys; sys.path.insert(0, {package!r}); before = set(sys.modules); "
        f"import {', '.join(modules)}; print(*(set(sys.modules) - before))"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )
    return set(ended.stdout.split())


def test_import_is_light() -> None:
    assert loaded("rtit") <= {"rtit", "rtit.errors", "__future__"}


def test_public_names() -> None:
    errors = {name for name in dir(rtit.errors) if name.endswith("Error")} | {"IllegalEvent"}
    assert set(dir(rtit)) - errors == {
        "Decoder",
        "Image",
        "Recording",
        "Selection",
        "Start",
        "Trace",
        "__version__",
        "assert_same_path",
        "decode",
        "lint",
        "record",
        "scenario",
        "stat",
    }
    assert errors <= {*dir(rtit)}
    for name in dir(rtit):
        assert getattr(rtit, name) is not None


def test_the_version_is_that_of_the_native_module() -> None:
    """A constant, so that asking costs nothing; the one of the build is in Cargo.toml."""
    from rtit import _core

    assert rtit.__version__ == _core.__version__
    manifest = Path(__file__).parents[2] / "Cargo.toml"
    workspace = tomllib.loads(manifest.read_text())["workspace"]
    assert rtit.__version__ == workspace["package"]["version"]


@pytest.mark.parametrize(
    "package",
    ["coverage", "image", "perfdata", "registers", "sideband", "trace"],
)
def test_packages_define_the_names_that_they_list(package: str) -> None:
    module = import_module(f"rtit.{package}")
    for name in module.__all__:
        assert getattr(module, name) is not None


def after(*commands: tuple[str, ...]) -> set[str]:
    """What is loaded when these commands have ended, one after the other."""
    package = str(Path(rtit.__file__).parent.parent)
    script = (
        f"import sys; sys.path.insert(0, {package!r})\n"
        "from rtit.cli.main import main\n"
        f"for words in {commands!r}:\n"
        "    try:\n"
        "        assert main(words) in (0, 3)\n"
        "    except SystemExit as ended:\n"
        "        assert not ended.code\n"
        "print('loaded', *sys.modules)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )
    return set(ended.stdout.rpartition("loaded")[2].split())


def test_help_of_commands_loads_next_to_nothing() -> None:
    found = after(*((verb, "--help") for verb in COMMANDS))
    assert {f"rtit.cli.{command.module}" for command in COMMANDS.values()} <= found
    assert not {"numpy", "rtit._core", "rtit.trace.stream", "rtit.perfdata.records"} & found
    # compressors, which argparse loads with shutil to ask for the width of the terminal
    found = after(("report", "--help"))
    assert not {"bz2", "json", "rtit.trace.tables.counts"} & found


_ASKED_FOR = ("image.guest_processes", "trace.perf_times")
_OPTIONS = {
    "blocks": ["--json"],
    "branches": ["--json"],
    "convert": ["--split", "parts"],
    "pack": ["-o", "pack.zip"],
}


_WITHOUT_NUMPY = ["blocks", "branches", "convert", "events", "info", "instructions", "pack"]


@pytest.mark.parametrize("verb", [*_WITHOUT_NUMPY, "packets", "report"])
def test_what_prints_no_columns_does_without_numpy(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "perf.data"
    with Writer(data, config=0x2401, cpuid="GenuineIntel,6,94,3") as out:
        out.auxtrace(7, 7, SYNC, None, 100)
    found = after((verb, str(data), *_OPTIONS.get(verb, ())))
    assert "rtit.trace.trace" in found
    assert not {"numpy", "difflib", "textwrap"} & found
    assert ("tempfile" in found) == (verb == "pack")
    # what a pack has of virtual machines is written, too
    packed = {"rtit.image.guest_processes"} if verb == "pack" else set()
    assert {f"rtit.{name}" for name in _ASKED_FOR} & found <= packed
    # declarations of packets: of whoever looks at single ones
    assert ("rtit.packets.table" in found) == (verb in ("events", "packets"))


@pytest.mark.parametrize(
    "words", [("msr", "IA32_RTIT_CTL", "0x2401"), ("cpuid", "--profile", "icelake")]
)
def test_registers_need_no_recording(words: tuple[str, ...]) -> None:
    found = after(words)
    assert "rtit.registers.profiles" in found
    packages = ("capture", "image", "perfdata", "processor", "trace", "unit")
    assert not {"numpy", "difflib", *(f"rtit.{package}" for package in packages)} & found


def test_recording_with_qemu_loads_no_trace_unit() -> None:
    found = loaded("rtit.cli.look.record", "rtit.capture.backends", "rtit.capture.qemu.start")
    assert not {name for name in found if name.startswith(("rtit.processor", "rtit.packets"))}
    assert {name for name in found if name.startswith("rtit.unit.")} == {"rtit.unit.time_model"}
    assert not {"numpy", "rtit.trace", "rtit.perfdata.reader"} & found
    assert "rtit.image.images" not in found
    # what is done before QEMU has been started; the rest is loaded while it loads
    assert not {"shutil", "tempfile", "fractions", "rtit.perfdata", "rtit._core"} & found
    assert "rtit.capture.events" not in found
    # of filters alone
    assert not {"difflib", "rtit.capture.filters", "rtit.image.file_symbols"} & found
