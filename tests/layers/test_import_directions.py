"""Which parts of the Python package, and which crates, may import which.

The decoder and the trace unit share only the packet table and the instruction classes.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Container, Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "rtit"

IMPORTABLE_BY_ALL = ("errors", "remote_files", "text_escaping")
"""Parts that every part may import."""
PYTHON_PARTS = {
    "generated_files": "",
    "packets": "generated_files",
    "registers": "",
    "linter": "packets",
    "unit": "packets registers generated_files",
    "processor": "unit registers packets",
    "worker_processes": "_core",
    "x86": "_core",
    "emulator_driver": "processor unit x86",
    "scenario": "processor unit registers packets",
    "perfdata": "_core",
    "image": "_core",
    # `Recording.trace` opens the recording
    "capture": "generated_files processor unit registers perfdata image trace _core",
    "sideband": "perfdata image",
    "trace": "sideband image perfdata packets worker_processes _core",
    "html_page": "",
    "views": "annotation coverage profile trace image packets html_page _core",
    "query": "trace image _core",
    "testing": "capture counting coverage diff profile trace",
    "gdb": "views trace image _core",
    "profile": "trace image x86 _core",
    "counting": "capture profile trace image _core",
    "coverage": "profile query trace image x86 html_page worker_processes _core",
    "annotation": "profile trace image x86 _core",
    "diff": "profile trace image x86 _core",
    **dict.fromkeys(IMPORTABLE_BY_ALL, ""),
}
CRATES = {
    "packet": "",
    "events": "",
    "x86": "",
    "image": "",
    "truth": "",
    "unit": "packet events",
    "huge-pages": "",
    "flow": "packet x86 image huge-pages",
    "calls": "flow",
    "listing": "x86 image flow calls",
    "tracer": "events x86 truth",
    "qemu": "events x86 truth unit",
    "python": "packet x86 image truth flow listing tracer unit pyo3",
}


@cache
def import_graph() -> dict[str, set[str]]:
    """Return, by module of the package, the modules that it imports, also within functions."""
    paths = {module_name(path): path for path in [*PACKAGE.rglob("*.py"), PACKAGE / "_core.pyi"]}
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = set(imported_names(module, path))
        graph[module] = {defining_module(name, paths) for name in names} - {"", module}
    return graph


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def defining_module(name: str, modules: Container[str]) -> str:
    """Return the module that defines a dotted name; "" if the name is not of the package."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def imported_names(module: str, path: Path) -> Iterator[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=source, names=names, level=level):
                base = resolve_name("." * level + (source or ""), package)
                yield from (f"{base}.{alias.name}" for alias in names)
            case ast.Call(func=ast.Name("exports"), args=[_, ast.Dict(keys=keys)]):
                # A package that loads names of its modules on use depends on these modules.
                yield from (f"{module}.{ast.literal_eval(key)}" for key in keys if key)


def part_of(module: str) -> str:
    return f"{module}.".split(".")[1]


@pytest.mark.parametrize("name", PYTHON_PARTS)
def test_part_imports_only_the_parts_below_it(name: str) -> None:
    used = {
        part_of(other)
        for module in import_graph()
        if part_of(module) == name
        for other in import_graph()[module]
    }
    assert used <= {*PYTHON_PARTS[name].split(), *IMPORTABLE_BY_ALL, name}


def test_every_part_but_the_command_line_has_a_rule() -> None:
    assert {part_of(module) for module in import_graph()} - {*PYTHON_PARTS} == {
        "",
        "__main__",
        "_core",
        "cli",
    }


def test_only_main_imports_the_command_line() -> None:
    users = {
        part_of(module) for module, used in import_graph().items() if "cli" in map(part_of, used)
    }
    assert users == {"__main__", "cli"}


def test_modules_do_not_import_each_other_cyclically() -> None:
    assert len(import_graph()) > 100
    TopologicalSorter(import_graph()).prepare()  # raises CycleError


@pytest.mark.parametrize("crate", CRATES)
def test_crate_depends_only_on_the_crates_below_it(crate: str) -> None:
    manifest = tomllib.loads((ROOT / "crates" / crate / "Cargo.toml").read_text())
    tables = [manifest, *manifest.get("target", {}).values()]
    names = {name for table in tables for name in table.get("dependencies", {})}
    ours = {name.removeprefix("rtit-") for name in names if name.startswith(("rtit-", "pyo3"))}
    assert ours <= {*CRATES[crate].split()}


def test_every_crate_has_a_rule() -> None:
    assert {path.name for path in (ROOT / "crates").iterdir()} == {*CRATES}
