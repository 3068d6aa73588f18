"""Which modules of a Rust crate depend on which, read from the source.

A module is a file; what is within `mod name { ... }` belongs to the file around it. What counts:
`mod child;`, for a parent may call the methods that its child adds to a type; every path in a
`use` or in code that leads to an item of another module, through re-exports to the module that
defines it. So a parent that only declares and re-exports is no part of a circle, and one whose own
items its children use is. What `#[cfg(test)]` marks does not count. Methods called on values and
what macros make are not seen.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = "crate"
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)".*?"(?P=hashes)|[bc]?"(?:\\.|[^"\\])*"
    |b?'(?:\\[^']+|\\'|[^'\\])'|'\w+|(?:r\#)?\w+|::|\S""",
    re.VERBOSE | re.DOTALL,
)
WORD = re.compile(r"(?:r#)?[A-Za-z_]\w*")
DEFINES = {"fn", "struct", "enum", "trait", "type", "const", "static", "union"}
OPEN, CLOSE = "([{", ")]}"

Names = tuple[str, ...]
"""A path in the source: `crate::a::Thing`."""


@dataclass
class Scope:
    """What a module, of a file or within one, brings in by name, defines and uses."""

    file: str
    aliases: dict[str, Names] = field(default_factory=dict)
    globs: list[Names] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    paths: list[Names] = field(default_factory=list)


def dependencies(source: Path) -> dict[str, frozenset[str]]:
    """By module of the crate with this source folder, the others of it that it depends on."""
    scopes: dict[str, Scope] = {}
    edges: dict[str, set[str]] = defaultdict(set)
    waiting = [(ROOT, source / "lib.rs")]
    while waiting:
        name, path = waiting.pop()
        edges[name] = set()
        folder = path.parent if path.name in {"lib.rs", "mod.rs"} else path.with_suffix("")
        for child in _read(path.read_text(), name, scopes):
            edges[name].add(f"{name}::{child}")
            places = (folder / f"{child}.rs", folder / child / "mod.rs")
            waiting.append((f"{name}::{child}", next(at for at in places if at.exists())))
    for name, scope in scopes.items():
        for names in [*scope.aliases.values(), *scope.paths]:
            edges[scope.file] |= _homes(names, name, scopes)
        for names in scope.globs:
            module = _module(names, name, scopes)
            edges[scope.file] |= {scopes[module].file} if module else set()
    return {name: frozenset(others - {name}) for name, others in edges.items()}


def _read(text: str, file: str, scopes: dict[str, Scope]) -> list[str]:
    """Fill in the scopes of a file; the modules that it declares to be files."""
    tokens = list(_without_tests([t for t in _tokens(text) if not t.startswith(("//", "/*"))]))
    children = []
    inside: list[str | None] = [file]  # a name for each open brace that begins a module
    scopes[file] = Scope(file)
    at = 0
    while at < len(tokens):
        token, here = tokens[at], next(name for name in reversed(inside) if name)
        before = tokens[at - 1] if at else ""
        if token == "mod" and tokens[at + 2] == ";":
            children.append(tokens[at + 1])
            at += 2
        elif token == "mod" and tokens[at + 2] == "{":
            inside.append(f"{here}::{tokens[at + 1]}")
            scopes[f"{here}::{tokens[at + 1]}"] = Scope(file)
            at += 2
        elif token == "use" and WORD.fullmatch(tokens[at + 1]):
            end = tokens.index(";", at)
            _use(tokens[at + 1 : end], (), scopes[here])
            at = end
        elif token == "{":
            inside.append(None)
        elif token == "}":
            inside.pop()
        elif token in DEFINES and WORD.fullmatch(tokens[at + 1].lstrip("!")):
            scopes[here].defined.add(tokens[at + 1])
        elif WORD.fullmatch(token) and before not in {"::", "."}:
            end = at + 1
            while tokens[end : end + 1] == ["::"] and WORD.fullmatch(tokens[end + 1]):
                end += 2
            if end > at + 1:
                scopes[here].paths.append(tuple(tokens[at:end:2]))
            at = end - 1
        at += 1
    return children


def _tokens(text: str) -> Iterator[str]:
    return (match.group() for match in TOKEN.finditer(text))


def _without_tests(tokens: list[str]) -> Iterator[str]:
    """The tokens without the items under `#[cfg(test)]`."""
    at = 0
    while at < len(tokens):
        if tokens[at] == "#" and tokens[at + 1 : at + 2] == ["["]:
            end = _balanced(tokens, at + 1)
            attribute = tokens[at:end]
            at = end
            if {"cfg", "test"} <= set(attribute) and "not" not in attribute:
                while tokens[at] == "#":
                    at = _balanced(tokens, at + 1)
                while tokens[at] not in {";", "{"}:
                    at = _balanced(tokens, at)
                at = _balanced(tokens, at)
        else:
            yield tokens[at]
            at += 1


def _balanced(tokens: list[str], at: int) -> int:
    """The index after the token or, if it opens a bracket, after the one that closes it."""
    depth = 0
    while True:
        depth += (tokens[at] in OPEN) - (tokens[at] in CLOSE)
        at += 1
        if depth == 0:
            return at


def _use(tokens: list[str], before: Names, scope: Scope) -> None:
    """Take in one tree of a `use`: `a::{b, c as d, self, e::*}`."""
    path, at = list(before), 0
    while at < len(tokens):
        token = tokens[at]
        if token == "{":
            part = at + 1
            while part < len(tokens) - 1:
                end = part
                while tokens[end] not in {",", "}"}:
                    end = _balanced(tokens, end)
                _use(tokens[part:end], tuple(path), scope)
                part = end + 1
            return
        if token == "*":
            scope.globs.append(tuple(path))
            return
        if token == "as":
            scope.aliases[tokens[at + 1]] = tuple(path)
            return
        if token != "::" and not (token == "self" and path):
            path.append(token)
        at += 1
    if path:
        scope.aliases[path[-1]] = tuple(path)


def _absolute(path: Names, scope: str, scopes: dict[str, Scope]) -> Names | None:
    """The path from the root of the crate; None if it leads out of the crate or is local."""
    first, *rest = path
    if first == ROOT:
        return path
    at = scope
    if first in {"self", "super"}:
        if first == "super":
            at = at.rpartition("::")[0]
        while rest and rest[0] == "super":
            at, rest = at.rpartition("::")[0], rest[1:]
        return (*at.split("::"), *rest)
    if f"{scope}::{first}" in scopes:
        return (*scope.split("::"), *path)
    target = scopes[scope].aliases.get(first)
    if target is None or target[0] == first:
        return None
    found = _absolute(target, scope, scopes)
    return None if found is None else (*found, *rest)


def _module(path: Names, scope: str, scopes: dict[str, Scope]) -> str | None:
    """The module that a path names, if it does."""
    absolute = _absolute(path, scope, scopes)
    name = "::".join(absolute or ())
    return name if name in scopes else None


def _homes(path: Names, scope: str, scopes: dict[str, Scope], depth: int = 0) -> set[str]:
    """The file that defines the item which a path leads to; none if it leads to no item of ours."""
    absolute = _absolute(path, scope, scopes)
    if absolute is None or depth > 20:
        return set()
    at, rest = ROOT, list(absolute[1:])
    while rest and f"{at}::{rest[0]}" in scopes:
        at = f"{at}::{rest.pop(0)}"
    if not rest:
        return set()
    here, name = scopes[at], rest[0]
    if name in here.aliases:
        return _homes((*here.aliases[name], *rest[1:]), at, scopes, depth + 1)
    if name not in here.defined:
        for glob in here.globs:
            module = _module(glob, at, scopes)
            if module and (name in scopes[module].defined or name in scopes[module].aliases):
                return _homes((*module.split("::"), *rest), at, scopes, depth + 1)
    return {here.file}
