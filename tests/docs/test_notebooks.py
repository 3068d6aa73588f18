"""Every notebook of the docs runs: its cells in order, with the display of their values."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from support.doc_commands import PAGES, ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def run_cell(source: str, namespace: dict[str, Any]) -> object:
    """Run a cell, and return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(source, namespace)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), namespace)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_cells_of_notebook_run(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("recording needs Linux, and the examples a C compiler")
    cells = json.loads(notebook.read_text())["cells"]
    text = notebook.read_text()
    for library, needed in (("duckdb", "rtit[query]"), ("polars", "polars"), ("pandas", "pandas")):
        if needed in text:
            pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            value = run_cell("".join(cell["source"]), namespace)
            if hasattr(value, "_repr_html_"):
                shown.append(value._repr_html_())
    assert shown
    assert all(shown)


def test_every_notebook_is_linked_in_a_page() -> None:
    assert len(NOTEBOOKS) >= 3
    text = "".join(page.read_text() for page in PAGES)
    for notebook in NOTEBOOKS:
        assert f"notebooks/{notebook.name})" in text
