"""What counts as noticing a mutation, and what does not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from mutants.mutation import Mutation
from mutants.run import FAILED, NOT_COLLECTED, PASSED, seen_in, within
from mutants.run import pytest as run

MODULE = "rtit.unit.state"
MUTANT = json.dumps(asdict(Mutation(MODULE, "f", "swap", "a < b", 1, 0)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "test_it.py"


@pytest.mark.parametrize(
    ("source", "seconds", "code"),
    [
        ("def test_it(): pass", 100, PASSED),
        ("def test_it(): assert 1 == 2", 100, FAILED),
        ("import no_such_module", 100, NOT_COLLECTED),
        ("def test_it():\n    while True: pass", 2, FAILED),
    ],
)
def test_how_tests_end(file: Path, source: str, seconds: int, code: int) -> None:
    file.write_text(source)
    assert run([str(file)], RTIT_SECONDS=str(seconds)) == code


def test_a_run_within_a_run_is_of_its_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTIT_MUTANT", MUTANT)
    file.write_text("def test_it(): pass")
    assert run([str(file)]) == PASSED


def test_a_missing_file_is_no_notice(file: Path) -> None:
    with pytest.raises(RuntimeError, match="pytest ended with 4"):
        run([str(file)])


def test_a_failure_without_the_mutated_code_is_no_notice(file: Path) -> None:
    file.write_text("def test_it(): assert 1 == 2")
    with pytest.raises(RuntimeError, match="pytest ended with 70"):
        run([str(file)], RTIT_MUTANT=MUTANT)


def test_a_mutation_of_code_that_is_not_there_is_no_notice(file: Path) -> None:
    file.write_text(f"def test_it(): import {MODULE}")
    with pytest.raises(RuntimeError, match="pytest ended with 70"):
        run([str(file)], RTIT_MUTANT=MUTANT)


def test_tests_have_to_pass_without_a_mutation(file: Path) -> None:
    file.write_text("def test_it(): assert 1 == 2")
    with pytest.raises(RuntimeError, match="do not pass without a mutation"):
        seen_in([str(file)])


def test_seen(file: Path) -> None:
    file.write_text(
        "import pytest\n"
        "from rtit.registers import FULL\n"
        "@pytest.mark.spec('A', 'B')\n"
        "def test_it(): FULL.cpuid(7)\n"
        "def test_elsewhere(record): pass\n"
    )
    (seen,) = seen_in([str(file)], RTIT_LINES="1")
    assert seen["rows"] == ["A", "B"]
    assert "profile.py" in {Path(path).name for path in seen["lines"]}


def test_the_first_that_fails_is_of_a_requirement(file: Path, tmp_path: Path) -> None:
    file.write_text(
        "import pytest\n"
        "def test_first(): assert 1 == 2\n"
        "@pytest.mark.spec('B', 'A')\n"
        "def test_second(): assert 1 == 2\n"
        "@pytest.mark.spec('C')\n"
        "def test_third(): pass\n"
    )
    failed = tmp_path / "failed"
    assert run([str(file)], RTIT_FAILED=str(failed)) == FAILED
    found = json.loads(failed.read_text())
    assert (found["test"].rsplit("::", 1)[1], found["rows"]) == ("test_second", ["A", "B"])
    file.write_text("def test_it(): pass")
    failed.unlink()
    assert run([str(file)], RTIT_FAILED=str(failed)) == PASSED
    assert not failed.exists()


def test_only_tests_without_a_live_program() -> None:
    assert within("unit/test_sizes.py")
    assert not within("end_to_end/test_attach.py")
