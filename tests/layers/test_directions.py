"""Who may import whom. The decoder and the trace unit share the packet table and the instruction
classes, nothing else.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from layers import rust_modules
from layers.python_modules import dependencies

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "python" / "rtit"

# part -> the parts that it may import (itself always, and what everything may import: `errors`,
# `lazy` and `readable`)
PYTHON = {
    "errors": set(),
    "lazy": set(),
    "readable": set(),
    "generated": set(),
    "packets": {"generated"},
    "registers": set(),
    "linter": {"packets"},
    "unit": {"packets", "registers", "generated"},
    "processor": {"unit", "registers", "packets"},
    "x86": {"_core"},
    "emulate": {"processor", "unit", "x86"},
    "scenario": {"processor", "unit", "registers", "packets"},
    "perfdata": {"_core"},
    "image": {"_core"},
    "capture": {"processor", "unit", "registers", "perfdata", "image", "_core"},
    "sideband": {"perfdata", "image"},
    "trace": {"sideband", "image", "perfdata", "packets", "_core"},
    "views": {"trace", "_core"},
    "testing": {"capture", "counting", "diff", "profile", "trace"},
    "gdb": {"views", "trace", "image", "_core"},
    "profile": {"trace", "image", "x86", "_core"},
    "counting": {"capture", "profile", "trace", "image", "_core"},
    "coverage": {"profile", "trace", "image", "x86", "_core"},
    "diff": {"profile", "trace", "image", "x86", "_core"},
}
CRATES = {
    "memory": set(),
    "packet": {"memory"},
    "x86": set(),
    "image": {"memory"},
    "truth": {"memory"},
    "unit": {"packet"},
    "flow": {"memory", "packet", "x86", "image"},
    "listing": {"memory", "x86", "image", "flow"},
    "tracer": {"x86", "truth"},
    "qemu": {"x86", "truth", "unit"},
    "python": {
        "memory",
        "packet",
        "x86",
        "image",
        "truth",
        "flow",
        "listing",
        "tracer",
        "unit",
    },
}

# the files and folders of a part from above to below, for each may use those below it alone; those
# on one line do not know each other
LAYERS = {
    "python/rtit/capture": (
        "backends",
        "ptrace qemu perf",
        "file session",
        "request",
        "store window",
        "clocks events filters options program recording",
        "private",
        "named_file",
    ),
    "crates/qemu/src": (
        "callbacks replaced",
        "process",
        "events",
        "shared",
        "thread",
        "interface",
        "failure",
    ),
}


@pytest.fixture(scope="module")
def used() -> dict[str, frozenset[str]]:
    """By part, the modules that it imports."""
    graph = dependencies(PACKAGE)
    parts = {name: name.split(".")[1] for name in graph if name != "rtit"}
    return {
        part: frozenset().union(*(graph[name] for name in parts if parts[name] == part))
        for part in parts.values()
    }


def parts_of(modules: frozenset[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name != "rtit"}


@pytest.mark.parametrize("part", PYTHON)
def test_python_directions(part: str, used: dict[str, frozenset[str]]) -> None:
    assert parts_of(used[part]) <= PYTHON[part] | {part, "errors", "lazy", "readable"}
    assert "rtit" not in used[part]


def test_nothing_imports_the_command_line(used: dict[str, frozenset[str]]) -> None:
    users = {part for part, modules in used.items() if "cli" in parts_of(modules)}
    assert users == {"__main__", "cli"}


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


@pytest.mark.parametrize("folder", LAYERS)
def test_layers_within(folder: str) -> None:
    if folder.startswith("crates"):
        graph, face, separator = rust_modules.dependencies(ROOT / folder), "crate", "::"
    else:
        graph, separator = dependencies(PACKAGE), "."
        face = folder.removeprefix("python/").replace("/", ".")
    height = {
        f"{face}{separator}{name}": -at
        for at, names in enumerate(LAYERS[folder])
        for name in names.split()
    }
    begin = len(face) + len(separator)

    def side(name: str) -> str:
        return name[:begin] + name[begin:].split(separator, maxsplit=1)[0]

    inside = [name for name in graph if name.startswith(face + separator)]
    assert {side(name) for name in inside} == set(height)
    wrong = [
        f"{name} -> {other}"
        for name in inside
        for other in graph[name]
        if other in inside and side(other) != side(name)
        if height[side(other)] >= height[side(name)]
    ]
    assert wrong == []
