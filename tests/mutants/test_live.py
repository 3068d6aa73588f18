"""Mutations in a child of a loaded process: what changes, what notices, what is remembered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mutants import live, results
from mutants.mutation import Mutation, mutations
from mutants.results import Result
from rtit.unit import compression
from rtit.unit.compression import compress_ip, is_predicted_return

PATH = Path(compression.__file__)
MODULE = compression.__name__


def mutation(text: str, kind: str) -> Mutation:
    (found,) = [
        each
        for each in mutations(MODULE, PATH.read_text())
        if (each.text, each.kind) == (text, kind)
    ]
    return found


def outcome(
    of: Mutation, *tests: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int | None]:
    """How it ended, and the number of the test that noticed."""

    def run(item: Any, **_: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(failed=not item())]

    monkeypatch.setattr(live, "runtestprotocol", run)
    known = [live.Test(cast(pytest.Item, test), frozenset(), seconds=-0.14) for test in tests]
    alive = live.functions([str(PATH)])[str(PATH)]
    code, test = live.attempt(live.changes(of, PATH), alive, known)
    return code, known.index(test) if test else None


def test_lines_that_run() -> None:
    seen: set[tuple[str, int]] = set()
    with live.Lines([str(PATH)]).seen(seen):
        is_predicted_return(1, 1, 64)
    text = PATH.read_text().splitlines()
    assert {text[line - 1].strip().split(" ")[0] for path, line in seen} == {"def", "return"}
    assert {path for path, _ in seen} == {str(PATH)}


def test_the_code_that_changes() -> None:
    found = live.changes(mutation("differs >> 16", "swap"), PATH)
    assert {each.co_qualname for each in found} == {"<module>", "compress_ip"}
    assert compress_ip.__code__ in found


def test_the_first_test_that_fails_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    def same() -> bool:
        return compress_ip(0x1_0000, 0x1_0000, 0b1010)[0] == 1

    def other() -> bool:
        return compress_ip(0x5_0000, 0x1_0000, 0b1010)[0] == 3

    of = mutation("not differs >> 16 and encodings & 2", "swap")
    assert outcome(of, same, other, other, monkeypatch=monkeypatch) == (live.FAILED, 1)
    assert other()  # here nothing has changed


def test_nobody_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    of = mutation("differs >> 16", "swap")
    assert outcome(of, lambda: True, monkeypatch=monkeypatch) == (live.PASSED, None)


def test_a_test_without_end_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless() -> bool:
        while is_predicted_return(1, 2, 64):
            pass
        return True

    of = mutation("expected == target", "swap")
    assert outcome(of, endless, monkeypatch=monkeypatch) == (live.FAILED, 0)


INNER = """
class Base:
    def __init__(self, seen): seen.append(1)

class Derived(Base):
    def __init__(self, seen): super().__init__(seen)

def sort(rows): rows.sort(key=lambda row: row[1])
"""


def test_code_that_closes_over_less_has_to_be_there_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "inner.py"
    path.write_text(INNER)
    (without,) = [each for each in mutations("inner", INNER) if "super()" in each.text]
    changed = live.changes(without, path)
    names: dict[str, Any] = {}
    (module,) = [code for code in changed if code.co_name == "<module>"]
    exec(module, names)
    alive = live.functions([str(path)])[str(path)]
    assert live.attempt(changed, alive, []) == (live.ABSENT, None)


def test_a_dropped_call_takes_its_functions_with_it(tmp_path: Path) -> None:
    path = tmp_path / "inner.py"
    path.write_text(INNER)
    (without,) = [each for each in mutations("inner", INNER) if "rows.sort" in each.text]
    assert {code.co_name for code in live.changes(without, path)} == {"<module>", "sort"}


def test_results_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.txt")
    assert results.load() == {}
    made = {
        name: Result(name, who, "0123abcd", by)
        for name, who, by in (
            ("m:f: swap: a < b", "row", "PIP-001"),
            ("m:g: flip: True (2)", "nobody", ""),
        )
    }
    results.save(made)
    assert results.load() == made
