"""Totals of folders: which folders are listed, and what they add up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rtit.coverage import folder_totals


def source(path: str, *counts: int) -> Any:
    names = ("lines_hit", "line_count", "outcomes_hit", "outcome_count")
    return SimpleNamespace(path=path, **dict(zip(names, counts, strict=True)))


def test_folder_adds_up_its_files_and_subfolders() -> None:
    sources = [
        source("/home/me/app/main.c", 1, 2, 3, 4),
        source("/home/me/app/part/one.c", 10, 20, 30, 40),
        source("/home/me/app/part/two.c", 100, 200, 300, 400),
        source("/usr/include/stdio.h", 1000, 2000, 0, 0),
    ]
    assert [tuple(each) for each in folder_totals(sources)] == [
        ("/", 1111, 2222, 333, 444),
        ("/home/me/app", 111, 222, 333, 444),
        ("/home/me/app/part", 110, 220, 330, 440),
        ("/usr/include", 1000, 2000, 0, 0),
    ]


def test_relative_file_is_in_the_current_folder() -> None:
    assert [tuple(each) for each in folder_totals([source("main.c", 1, 2, 0, 0)])] == [
        (".", 1, 2, 0, 0)
    ]
    assert folder_totals([]) == []
