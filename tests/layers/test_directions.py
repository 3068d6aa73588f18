"""Who may import whom. The decoder and the trace unit share the packet table and the instruction
classes, nothing else.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "python" / "rtit"

# part -> the parts that it may import (itself, `errors` and `lazy` always)
PYTHON = {
    "errors": set(),
    "lazy": set(),
    "packets": set(),
    "registers": set(),
    "unit": {"packets", "registers"},
    "processor": {"unit", "registers", "packets"},
    "scenario": {"processor", "unit", "registers", "packets"},
    "perfdata": set(),
    "image": {"_core"},
    "capture": {"processor", "unit", "registers", "perfdata", "image", "_core"},
    "sideband": {"perfdata", "image"},
    "trace": {"sideband", "image", "perfdata", "packets", "_core"},
    "views": {"trace", "_core"},
}
CRATES = {
    "packet": set(),
    "x86": set(),
    "image": set(),
    "truth": set(),
    "unit": {"packet"},
    "flow": {"packet", "x86", "image"},
    "tracer": {"x86", "truth"},
    "qemu": {"x86", "truth", "unit"},
    "python": {"packet", "x86", "image", "truth", "flow", "tracer", "unit"},
}


def imported_parts(path: Path) -> set[str]:
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "rtit":
                names = [f"rtit.{alias.name}" for alias in node.names]
            else:
                names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        parts |= {name.split(".")[1] for name in names if name.startswith("rtit.")}
    return parts


def files_of(part: str) -> list[Path]:
    folder = PACKAGE / part
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{part}.py"]


@pytest.mark.parametrize("part", PYTHON)
def test_python_directions(part: str) -> None:
    for path in files_of(part):
        wrong = imported_parts(path) - PYTHON[part] - {part, "errors", "lazy"}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_nothing_imports_the_command_line() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "cli" and path.name != "__main__.py":
            assert "cli" not in imported_parts(path), path


def test_every_part_has_a_rule() -> None:
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py"}
    found |= {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert found - set(PYTHON) == {"__init__", "__main__", "cli"}


@pytest.mark.parametrize("crate", CRATES)
def test_crate_directions(crate: str) -> None:
    manifest = tomllib.loads((ROOT / "crates" / crate / "Cargo.toml").read_text())
    tables = [manifest, *manifest.get("target", {}).values()]
    names = {name for table in tables for name in table.get("dependencies", {})}
    used = {name.removeprefix("rtit-") for name in names if name.startswith("rtit-")}
    assert used <= CRATES[crate]


def test_every_crate_has_a_rule() -> None:
    assert {path.name for path in (ROOT / "crates").iterdir()} == set(CRATES)


def test_only_the_border_knows_python() -> None:
    for crate in CRATES:
        manifest = tomllib.loads((ROOT / "crates" / crate / "Cargo.toml").read_text())
        assert ("pyo3" in manifest["dependencies"]) == (crate == "python"), crate
