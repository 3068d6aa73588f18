"""Which results of a test run count as noticing a mutation."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from mutants.mutation import Mutation
from mutants.run_drawn import (
    FAILED,
    NOT_COLLECTED,
    PASSED,
    needs_no_program,
    records_of_tests,
    run_pytest,
)

pytestmark = pytest.mark.slow
MODULE = "rtit.unit.state"
MUTANT = json.dumps(asdict(Mutation(MODULE, "f", "swap", "a < b", 1, 0)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "test_it.py"


@pytest.mark.parametrize(
    ("source", "seconds", "code"),
    [
        ("def test_written_example(): pass", 100, PASSED),
        ("def test_written_example(): assert 1 == 2", 100, FAILED),
        ("import no_such_module", 100, NOT_COLLECTED),
        ("def test_written_example():\n    while True: pass", 2, FAILED),
    ],
)
def test_run_pytest_returns_how_tests_ended(
    file: Path, source: str, seconds: int, code: int
) -> None:
    file.write_text(source)
    assert run_pytest([str(file)], RTIT_SECONDS=str(seconds)) == code


def test_run_pytest_ignores_inherited_variables(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RTIT_MUTANT", MUTANT)
    file.write_text("def test_written_example(): pass")
    assert run_pytest([str(file)]) == PASSED


def test_missing_file_is_an_error(file: Path) -> None:
    with pytest.raises(RuntimeError, match="pytest ended with 4"):
        run_pytest([str(file)])


def test_failure_without_loading_the_mutated_module_is_an_error(file: Path) -> None:
    file.write_text("def test_written_example(): assert 1 == 2")
    with pytest.raises(RuntimeError, match="pytest ended with 70"):
        run_pytest([str(file)], RTIT_MUTANT=MUTANT)


def test_mutation_of_absent_code_is_an_error(file: Path) -> None:
    file.write_text(f"def test_written_example(): import {MODULE}")
    with pytest.raises(RuntimeError, match="pytest ended with 70"):
        run_pytest([str(file)], RTIT_MUTANT=MUTANT)


def test_tests_that_fail_without_a_mutation_are_an_error(file: Path) -> None:
    file.write_text("def test_written_example(): assert 1 == 2")
    with pytest.raises(RuntimeError, match="do not pass without a mutation"):
        records_of_tests([str(file)])


def test_records_have_requirements_and_lines(file: Path) -> None:
    file.write_text(
        "import pytest\n"
        "from rtit.registers import FULL\n"
        "@pytest.mark.spec('A', 'B')\n"
        "def test_written_example(): FULL.cpuid(7)\n"
        "def test_with_unused_record(record): pass\n"
    )
    (record,) = records_of_tests([str(file)], RTIT_LINES="1")
    assert record["rows"] == ["A", "B"]
    assert "profiles.py" in {Path(path).name for path in record["lines"]}


def test_failing_test_of_a_requirement_is_reported_first(file: Path, tmp_path: Path) -> None:
    file.write_text(
        "import pytest\n"
        "def test_first_failing(): assert 1 == 2\n"
        "@pytest.mark.spec('B', 'A')\n"
        "def test_second_failing(): assert 1 == 2\n"
        "@pytest.mark.spec('C')\n"
        "def test_third_passing(): pass\n"
    )
    failed = tmp_path / "failed"
    assert run_pytest([str(file)], RTIT_FAILED=str(failed)) == FAILED
    found = json.loads(failed.read_text())
    assert (found["test"].rsplit("::", 1)[1], found["rows"]) == ("test_second_failing", ["A", "B"])
    file.write_text("def test_written_example(): pass")
    failed.unlink()
    assert run_pytest([str(file)], RTIT_FAILED=str(failed)) == PASSED
    assert not failed.exists()


def test_needs_no_program_depends_on_the_folder() -> None:
    assert needs_no_program("unit/test_sizes.py")
    assert not needs_no_program("end_to_end/test_attach.py")
