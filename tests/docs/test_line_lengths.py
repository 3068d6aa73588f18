"""Lines of tracked text files have at most 120 characters."""

from __future__ import annotations

import subprocess

import pytest

from support.doc_commands import ROOT

LONGEST_LINE = 120
EXCEPTIONS = {
    ".scenario": "an event of a scenario is one line",
    "tests/mutants/equivalent.txt": "a name of a mutation is one line",
}
"""Ends of paths, with the reason for longer lines."""
TABLE_ROW = "//! |"
"""A row of a Markdown table in Rust documentation cannot be wrapped."""
BINARY_FOLDERS = ("fuzz/kept/",)


def tracked_files() -> list[str]:
    """Return the paths of tracked files, or skip outside of a git checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()]


def read_text_lines(path: str) -> list[str]:
    """Return the lines of a text file; none of a binary file."""
    content = (ROOT / path).read_bytes()
    if b"\0" in content:
        return []
    return content.decode(errors="replace").split("\n")


def test_lines_of_text_files_are_short() -> None:
    found = [
        f"{path}:{number}"
        for path in tracked_files()
        if not path.startswith(BINARY_FOLDERS) and not path.endswith(tuple(EXCEPTIONS))
        for number, line in enumerate(read_text_lines(path), 1)
        if len(line) > LONGEST_LINE and not line.startswith(TABLE_ROW)
    ]
    assert found == []


def test_exceptions_from_the_line_limit_are_needed() -> None:
    paths = tracked_files()
    for end in EXCEPTIONS:
        files = [path for path in paths if path.endswith(end)]
        assert any(len(line) > LONGEST_LINE for path in files for line in read_text_lines(path))
