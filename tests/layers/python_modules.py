"""Which modules of a Python package depend on which, read from the source.

What counts: every import, also within functions and under TYPE_CHECKING; `import_module("name")`;
the modules that `rtit.lazy.exports` loads on use, for the package that hands them on depends on
them like on any import. `from package import name` is the submodule of that name or, if there is
none, the package's `__init__`. That importing `a.b` runs `a/__init__.py` first does not count, or
every package that hands on names of its own modules would be a circle.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def dependencies(package: Path) -> dict[str, frozenset[str]]:
    """By module of the package in this folder, the modules of the same that it depends on.

    A native module is what its `.pyi` says.
    """
    paths = sorted([*package.rglob("*.py"), *package.rglob("*.pyi")])
    files = {_name(path, package): path for path in paths}
    graph = {}
    for name, path in files.items():
        found = set()
        tree = ast.parse(path.read_text(), path)
        for target in _targets(tree, name, path.name == "__init__.py"):
            home = target
            while home and home not in files:
                home = home.rpartition(".")[0]
            found.add(home)
        graph[name] = frozenset(found - {name, ""})
    return graph


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _targets(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """The dotted names that a module imports, whether they are modules or not."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=source, names=names, level=level):
                base = source or ""
                if level:
                    around = module.split(".")
                    around = around[: len(around) + is_package - level]
                    base = ".".join([*around, source] if source else around)
                yield from (f"{base}.{alias.name}" for alias in names)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if (
                _called(function) == "import_module"
            ):
                yield name
            case ast.Call(func=function, args=[_, ast.Dict(keys=keys)]) if (
                _called(function) == "exports"
            ):
                for key in keys:
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield f"{module}.{key.value}"


def _called(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
