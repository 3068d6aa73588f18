"""Every block of Python in README and docs runs; together they use every public method."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from inspect import isfunction

import pytest

import rtit
from rtit import Decoder, Image, Trace
from rtit.perfdata import TimeConversion
from rtit.trace import Batch, Counts, Ledger, Stream, Table
from support.doc_commands import PAGES, add_examples, python_blocks

WITHOUT = {
    # used by other parts of rtit only
    *("Trace.guest_processes", "Ledger.from_rows", "Image.native"),
    *(
        "Stream.native_decoder",
        "Stream.packets_with_bytes",
        "Stream.tail",
        "Stream.guest_spaces",
        "Stream.other_spaces",
        "Stream.has_several_threads",
        "Stream.last_interval_start",
    ),
    *("Stream.has_one_process", "Stream.edges_by_process"),
    *("Stream.runs_with_start", "Stream.errors_of_class"),
    *("Batch.concatenate", "Batch.with_columns", "Batch.without_columns"),
}


OPTIONAL = [
    ("fsspec", "fsspec"),
    ("unicorn", "unicorn"),
    ("rtit.query", "duckdb"),
    ("to_polars", "polars"),
    ("to_pandas", "pandas"),
    ("to_arrow", "pyarrow"),
]
"""Words in blocks that need a library which may be missing."""


CALLS = """
import sys as _sys
def _seen(frame, event, _argument, known=set()):
    code = frame.f_code
    if event == "call" and code not in known and "/rtit/" in code.co_filename:
        known.add(code)
        open("calls", "a").write(code.co_qualname + "\\n")
_sys.setprofile(_seen)
"""
"""Precedes each block: writes the names of rtit's functions that it calls to the file `calls`."""


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Run all blocks, and return the qualified names of rtit's functions that they called."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("recording needs Linux, and the examples a C compiler")
    folder = tmp_path_factory.mktemp("blocks")
    add_examples(folder)
    for block in (each for page in PAGES for each in python_blocks(page)):
        if any(word in block and find_spec(library) is None for word, library in OPTIONAL):
            continue
        ended = subprocess.run(
            [sys.executable, "-c", CALLS + block],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{block}\n{ended.stderr}"
        assert ended.stdout
    return set((folder / "calls").read_text().split())


def public(documented_class: type) -> set[str]:
    """Return the qualified names of the methods and properties that a class itself defines."""
    functions = {
        name: getattr(member, "func", getattr(member, "fget", getattr(member, "__func__", member)))
        for name, member in vars(documented_class).items()
        if not name.startswith("_")
    }
    return {each.__qualname__ for each in functions.values() if isfunction(each)}


@pytest.mark.parametrize(
    "documented_class",
    [Trace, Stream, Table, Batch, Decoder, Image, Ledger, Counts, TimeConversion],
)
def test_docs_have_an_example_of_each_public_method(
    documented_class: type, called: set[str]
) -> None:
    names = public(documented_class)
    assert names
    assert names - called - WITHOUT == set()


def test_docs_have_an_example_of_each_public_name() -> None:
    shown = "".join(block for page in PAGES for block in python_blocks(page))
    for name in set(rtit.__all__) - {"__version__"}:
        if not issubclass(type(getattr(rtit, name)), type) or not issubclass(
            getattr(rtit, name), Exception
        ):
            assert re.search(rf"\brtit\.{name}\b|from rtit import .*\b{name}\b", shown), name
