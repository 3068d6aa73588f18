"""No modules import each other in a circle, by file or by folder, in Python or in any crate."""

from __future__ import annotations

from pathlib import Path

import pytest

from layers import python_modules, rust_modules
from layers.graph import Graph, circles, edges_within, folder_circles

ROOT = Path(__file__).resolve().parent.parent.parent
CRATES = sorted(path.name for path in (ROOT / "crates").iterdir())

BY_TOPIC = {"rtit.unit"}
"""Packages whose folders are topics of the chapter, not layers: only files have a direction."""


def described(graph: Graph, separator: str) -> str:
    """Who imports whom in the circles of a graph, a line an import."""
    folders = folder_circles(graph, separator)
    found = [circle for circle in folders if circle[0].rpartition(separator)[0] not in BY_TOPIC]
    lines = [edges_within(graph, circle, separator) for circle in circles(graph) + found]
    return "\n".join(line for circle in lines for line in circle)


def test_no_circles_in_python() -> None:
    graph = python_modules.dependencies(ROOT / "python" / "rtit")
    assert len(graph) > 100
    found = described(graph, ".")
    assert not found, found


@pytest.mark.parametrize("crate", CRATES)
def test_no_circles_in_a_crate(crate: str) -> None:
    graph = rust_modules.dependencies(ROOT / "crates" / crate / "src")
    assert len(graph) > 2
    found = described(graph, "::")
    assert not found, found
