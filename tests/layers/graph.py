"""Circles in a graph of modules, by file and by folder.

A graph maps each module's name (`rtit.unit.psb`, `crate::thread::quiet`) to those it depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Graph = Mapping[str, frozenset[str]]


def circles(graph: Graph) -> list[list[str]]:
    """The sets of two and more modules that all depend on each other, each sorted.

    These are the strongly connected components, by Tarjan's algorithm.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, frozenset()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            component, stack[at:] = stack[at:], []
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)


def folder_circles(graph: Graph, separator: str) -> list[list[str]]:
    """The circles of what lies side by side in any folder: files, and folders as a whole.

    A folder's own file (`__init__.py`, `mod.rs`) is its face and no part of this.
    """
    found = []
    for folder in sorted({name.rpartition(separator)[0] for name in graph} - {""}):
        prefix = folder + separator
        sides = {
            name: prefix + name.removeprefix(prefix).split(separator)[0]
            for name in graph
            if name.startswith(prefix)
        }
        edges: dict[str, set[str]] = {side: set() for side in sides.values()}
        for name, side in sides.items():
            edges[side] |= {sides[other] for other in graph[name] if other in sides} - {side}
        found += circles({side: frozenset(others) for side, others in edges.items()})
    return sorted(found)


def edges_within(graph: Graph, circle: Iterable[str], separator: str) -> list[str]:
    """Who imports whom in a circle of modules or of folders: a line an import."""
    members = sorted(circle, key=len, reverse=True)

    def side(name: str) -> str | None:
        return next((at for at in members if f"{name}{separator}".startswith(at + separator)), None)

    return [
        f"{name} -> {other}"
        for name in sorted(graph)
        for other in sorted(graph[name])
        if side(name) and side(other) and side(name) != side(other)
    ]
