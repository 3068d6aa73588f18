"""`import rtit` loads few modules, and gives the public names."""

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
from support.recordings import require_backend
from support.streams import SYNC


def modules_loaded_by_import(*modules: str) -> set[str]:
    """Return the modules that an import loads into a fresh interpreter."""
    package = str(Path(rtit.__file__).parent.parent)
    script = (
        f"import sys; sys.path.insert(0, {package!r}); before = set(sys.modules); "
        f"import {', '.join(modules)}; print(*(set(sys.modules) - before))"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )
    return set(ended.stdout.split())


def test_import_rtit_loads_only_errors() -> None:
    assert modules_loaded_by_import("rtit") <= {"rtit", "rtit.errors", "__future__"}


def test_package_rtit_has_only_its_public_names() -> None:
    errors = {name for name in dir(rtit.errors) if name.endswith("Error")} | {"IllegalEvent"}
    assert set(dir(rtit)) - errors == {
        "Decoder",
        "Image",
        "Recording",
        "Selection",
        "Start",
        "Trace",
        "__version__",
        "annotate",
        "assert_same_path",
        "decode",
        "lint",
        "map_many",
        "open_many",
        "record",
        "scenario",
        "stat",
    }
    assert errors <= {*dir(rtit)}
    for name in dir(rtit):
        assert getattr(rtit, name) is not None


def test_version_equals_that_of_the_native_module() -> None:
    """A constant makes the version cheap to read; Cargo.toml has that of the build."""
    from rtit import _core

    assert rtit.__version__ == _core.__version__
    manifest = Path(__file__).parents[2] / "Cargo.toml"
    workspace = tomllib.loads(manifest.read_text())["workspace"]
    assert rtit.__version__ == workspace["package"]["version"]


@pytest.mark.parametrize(
    "package",
    ["annotation", "coverage", "image", "perfdata", "registers", "sideband", "trace"],
)
def test_packages_define_the_names_that_they_list(package: str) -> None:
    module = import_module(f"rtit.{package}")
    for name in module.__all__:
        assert getattr(module, name) is not None


def modules_loaded_by_commands(*commands: tuple[str, ...]) -> set[str]:
    """Return the modules that are loaded after the given commands have run."""
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
    found = modules_loaded_by_commands(*((command, "--help") for command in COMMANDS))
    assert {f"rtit.cli.{entry.module}" for entry in COMMANDS.values()} <= found
    assert not {"numpy", "rtit._core", "rtit.trace.stream", "rtit.perfdata.records"} & found
    found = modules_loaded_by_commands(("report", "--help"))
    assert not {"json", "rtit.trace.tables.counts"} & found


_LOADED_ON_DEMAND = ("image.guest_processes",)
_OPTIONS = {
    "blocks": ["--json"],
    "branches": ["--json"],
    "convert": ["--split", "parts"],
    "pack": ["-o", "pack.zip"],
}


_WITHOUT_NUMPY = ["blocks", "branches", "convert", "events", "info", "instructions", "pack"]


@pytest.mark.parametrize("command", [*_WITHOUT_NUMPY, "packets", "report"])
def test_command_without_columns_does_not_load_numpy(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "perf.data"
    with Writer(data, config=0x2401, cpuid="GenuineIntel,6,94,3") as out:
        out.auxtrace(7, 7, SYNC, None, 100)
    found = modules_loaded_by_commands((command, str(data), *_OPTIONS.get(command, ())))
    assert "rtit.trace.trace" in found
    assert not {"numpy", "difflib", "textwrap", "datetime"} & found
    # only recordings of kernels need the code for kernels
    assert "rtit.image.kernel.kernel" not in found
    assert ("tempfile" in found) == (command == "pack")
    # a pack also includes what the recording has of virtual machines
    packed = {"rtit.image.guest_processes"} if command == "pack" else set()
    assert {f"rtit.{name}" for name in _LOADED_ON_DEMAND} & found <= packed
    # only commands that print single packets load the packet table
    assert ("rtit.packets.table" in found) == (command in ("events", "packets"))


@pytest.mark.parametrize(
    "words", [("msr", "IA32_RTIT_CTL", "0x2401"), ("cpuid", "--profile", "icelake")]
)
def test_register_commands_load_no_recording_code(words: tuple[str, ...]) -> None:
    found = modules_loaded_by_commands(words)
    assert "rtit.registers.profiles" in found
    packages = ("capture", "image", "perfdata", "processor", "trace", "unit")
    assert not {"numpy", "difflib", *(f"rtit.{package}" for package in packages)} & found


def test_stat_of_a_program_loads_no_decoder() -> None:
    require_backend("qemu")
    found = modules_loaded_by_commands(("stat", "--", "true"))
    assert "rtit.counting.counted_run" in found
    assert not {"numpy", "tempfile", "rtit.trace", "rtit.image", "rtit.perfdata"} & found


def test_qemu_recording_does_not_load_the_python_trace_unit() -> None:
    found = modules_loaded_by_import(
        "rtit.cli.look.record", "rtit.capture.backends", "rtit.capture.qemu.start"
    )
    assert not {name for name in found if name.startswith(("rtit.processor", "rtit.packets"))}
    assert {name for name in found if name.startswith("rtit.unit.")} == {"rtit.unit.time_model"}
    assert not {"numpy", "rtit.trace", "rtit.perfdata.reader"} & found
    assert "rtit.image.images" not in found
    # modules needed before QEMU starts; the others are loaded while QEMU loads
    assert not {"shutil", "tempfile", "fractions", "rtit.perfdata", "rtit._core"} & found
    assert "rtit.capture.events" not in found
    # needed for filters only
    assert not {"difflib", "rtit.capture.filters", "rtit.image.file_symbols"} & found
