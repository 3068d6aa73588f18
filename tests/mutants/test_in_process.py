"""Mutations in a child of a loaded process: changed code, the noticing test, saved results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mutants import in_process, results
from mutants.mutation import Mutation, mutations
from mutants.results import Result
from rtit.unit import compression
from rtit.unit.compression import compress_ip, is_predicted_return

PATH = Path(compression.__file__)
MODULE = compression.__name__


def find_mutation(text: str, kind: str) -> Mutation:
    (found,) = [
        each
        for each in mutations(MODULE, PATH.read_text())
        if (each.text, each.kind) == (text, kind)
    ]
    return found


def attempt_outcome(
    mutation: Mutation, *tests: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int | None]:
    """Return how the run ended, and the index of the test that failed."""

    def run(item: Any, **_: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(failed=not item())]

    monkeypatch.setattr(in_process, "runtestprotocol", run)
    traced = [
        in_process.TracedTest(cast(pytest.Item, test), frozenset(), seconds=-0.14) for test in tests
    ]
    functions = in_process.functions_by_file([str(PATH)])[str(PATH)]
    code, test = in_process.run_with_changes(
        in_process.changed_code(mutation, PATH), functions, traced
    )
    return code, traced.index(test) if test else None


def test_line_tracer_records_executed_lines() -> None:
    seen: set[tuple[str, int]] = set()
    with in_process.LineTracer([str(PATH)]).record_lines(seen):
        is_predicted_return(1, 1, 64)
    text = PATH.read_text().splitlines()
    assert {text[line - 1].strip().split(" ")[0] for path, line in seen} == {"def", "return"}
    assert {path for path, _ in seen} == {str(PATH)}


def test_changed_code_includes_module_and_function() -> None:
    found = in_process.changed_code(find_mutation("differs >> 16", "swap"), PATH)
    assert {each.co_qualname for each in found} == {"<module>", "compress_ip"}
    assert compress_ip.__code__ in found


def test_first_failing_test_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    def same() -> bool:
        return compress_ip(0x1_0000, 0x1_0000, 0b1010)[0] == 1

    def other() -> bool:
        return compress_ip(0x5_0000, 0x1_0000, 0b1010)[0] == 3

    mutation = find_mutation("not differs >> 16 and encodings & 2", "swap")
    assert attempt_outcome(mutation, same, other, other, monkeypatch=monkeypatch) == (
        in_process.FAILED,
        1,
    )
    assert other()  # the parent process is unchanged


def test_no_failing_test_means_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = find_mutation("differs >> 16", "swap")
    assert attempt_outcome(mutation, lambda: True, monkeypatch=monkeypatch) == (
        in_process.PASSED,
        None,
    )


def test_endless_test_counts_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless() -> bool:
        while is_predicted_return(1, 2, 64):
            pass
        return True

    mutation = find_mutation("expected == target", "swap")
    assert attempt_outcome(mutation, endless, monkeypatch=monkeypatch) == (
        in_process.FAILED,
        0,
    )


INNER = """
class Base:
    def __init__(self, seen): seen.append(1)

class Derived(Base):
    def __init__(self, seen): super().__init__(seen)

def sort(rows): rows.sort(key=lambda row: row[1])
"""


def test_code_with_fewer_closure_variables_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "inner.py"
    path.write_text(INNER)
    (call_dropped,) = [each for each in mutations("inner", INNER) if "super()" in each.text]
    changed = in_process.changed_code(call_dropped, path)
    names: dict[str, Any] = {}
    (module,) = [code for code in changed if code.co_name == "<module>"]
    exec(module, names)
    functions = in_process.functions_by_file([str(path)])[str(path)]
    assert in_process.run_with_changes(changed, functions, []) == (in_process.ABSENT, None)


def test_dropped_call_also_drops_its_lambda(tmp_path: Path) -> None:
    path = tmp_path / "inner.py"
    path.write_text(INNER)
    (call_dropped,) = [each for each in mutations("inner", INNER) if "rows.sort" in each.text]
    assert {code.co_name for code in in_process.changed_code(call_dropped, path)} == {
        "<module>",
        "sort",
    }


def test_saved_results_are_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.txt")
    assert results.load_results() == {}
    written = {
        name: Result(name, who, "0123abcd", by)
        for name, who, by in (
            ("m:f: swap: a < b", "row", "PIP-001"),
            ("m:g: flip: True (2)", "no test", ""),
        )
    }
    results.save_results(written)
    assert results.load_results() == written
