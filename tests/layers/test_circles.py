"""No modules import each other in a circle, by file or by folder, in Python or in any crate."""

from __future__ import annotations

from pathlib import Path

import pytest

from layers import python_modules, rust_modules
from layers.graph import Graph, circles, edges_within, folder_circles

ROOT = Path(__file__).resolve().parent.parent.parent
CRATES = sorted(path.name for path in (ROOT / "crates").iterdir())

KNOWN = {"qemu", "tracer"}
"""Crates with circles that are still to be cut."""


def described(graph: Graph, separator: str) -> list[str]:
    """Who imports whom in the circles of a graph, a line an import."""
    found = circles(graph) + folder_circles(graph, separator)
    return [line for circle in found for line in edges_within(graph, circle, separator)]


def test_no_circles_in_python() -> None:
    graph = python_modules.dependencies(ROOT / "python" / "rtit")
    assert len(graph) > 100
    assert described(graph, ".") == []


@pytest.mark.parametrize("crate", CRATES)
def test_no_circles_in_a_crate(crate: str) -> None:
    graph = rust_modules.dependencies(ROOT / "crates" / crate / "src")
    assert len(graph) > 2
    if crate in KNOWN:
        assert described(graph, "::"), f"{crate} has no circle any more: take it out of KNOWN"
    else:
        assert described(graph, "::") == []
