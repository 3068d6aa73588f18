"""Coverage by test, compared with the log that the tested program itself writes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rtit
from rtit.cli.main import main
from rtit.coverage.by_test import CoverageOfTest, coverage_files, read_coverage_of_test
from rtit.errors import InputError

pytest_plugins = ["pytester"]

# Each line with LOG writes the function and the number of the line to the file of the first word.
LOGGED = r"""
#include <stdio.h>
#include <string.h>

static FILE *file;
#define LOG fprintf(file, "%s %d\n", __func__, __LINE__)

__attribute__((noinline)) static void square(int n) {
    LOG;
    if (n > 2)
        LOG;
}

__attribute__((always_inline)) static inline void cube(int n) {
    if (n > 2)
        LOG;
    LOG;
}

__attribute__((noinline)) static void never(void) {
    LOG;
}

int main(int argc, char **argv) {
    file = fopen(argv[1], "a");
    LOG;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "square"))
            square(i);
        else if (!strcmp(argv[i], "cube"))
            cube(i);
        else
            never();
    }
    fclose(file);
}
"""
TESTS = """
    import pytest

    @pytest.mark.parametrize("word", ["square", "cube"])
    def test_of_stat(rtit, word):
        rtit.stat(["{exe}", "{logs}/" + word, word])

    @pytest.mark.parametrize("name", ["a b", "a_b"])
    def test_of_two_recordings(rtit, name):
        rtit.record(["{exe}", "{logs}/" + name, "square"])
        rtit.record(["{exe}", "{logs}/" + name, "square", "square", "cube"])

    def test_without_program(rtit):
        pass
"""
LOG_OF_TEST = {
    "test_them.py::test_of_stat[square]": "square",
    "test_them.py::test_of_stat[cube]": "cube",
    "test_them.py::test_of_two_recordings[a b]": "a b",
    "test_them.py::test_of_two_recordings[a_b]": "a_b",
}
FUNCTIONS = {"square", "cube", "never", "main"}
LINES = {number for number, text in enumerate(LOGGED.splitlines(), 1) if text.endswith(" LOG;")}
LINES_OF_MAIN = {max(LINES)}
NEVER = sorted(LINES)[-2]
Run = Callable[..., pytest.RunResult]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program that writes its log."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("logged")
    (folder / "logged.c").write_text(LOGGED)
    subprocess.run(["cc", "-g", "-O1", "-o", "logged", "logged.c"], cwd=folder, check=True)
    return folder / "logged"


def read_log(path: Path) -> tuple[set[str], dict[int, int]]:
    """Return the functions of a log, and the count of each line."""
    rows = [line.split() for line in path.read_text().splitlines()]
    numbers = [int(line) for _, line in rows]
    return {name for name, _ in rows}, {line: numbers.count(line) for line in numbers}


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, logged: Path) -> Run:
    """Return a function that runs the tests with options; each test has a log beside them."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(rtit.__file__).parent.parent))
    pytester.makepyfile(test_them=TESTS.format(exe=logged, logs=pytester.path))

    def ran(*options: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess("-p", "rtit.testing.plugin", *options)

    return ran


def assert_equals_log(test: CoverageOfTest, logged: Path, log: Path) -> None:
    functions, counts = read_log(log)
    program = test.with_files(test.programs)
    assert test.programs == [str(logged)]
    assert program.functions & FUNCTIONS == functions
    source = str(logged.with_suffix(".c"))
    found = {line: program.line_count(source, line) for line in LINES}
    assert {line: count for line, count in found.items() if count} == counts


def test_plugin_stores_for_each_test_what_its_programs_logged(
    run: Run, pytester: pytest.Pytester, logged: Path
) -> None:
    run("--rtit-coverage").assert_outcomes(passed=5)
    folder = pytester.path / "rtit-coverage"
    tests = {test.name: test for test in map(read_coverage_of_test, coverage_files(folder))}
    assert tests.keys() == LOG_OF_TEST.keys()
    for name, log in LOG_OF_TEST.items():
        assert_equals_log(tests[name], logged, pytester.path / log)
        assert not tests[name].has_gaps
    # A session replaces what an earlier one has stored.
    run("--rtit-coverage", "-k", "stat and cube").assert_outcomes(passed=1, deselected=4)
    (path,) = coverage_files(folder)
    assert read_coverage_of_test(path).name == "test_them.py::test_of_stat[cube]"


@pytest.mark.slow
def test_workers_store_the_coverage_of_all_tests(run: Run, pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    run("--rtit-coverage=there", "-p", "xdist", "-n", "2").assert_outcomes(passed=5)
    files = coverage_files(pytester.path / "there")
    assert {read_coverage_of_test(path).name for path in files} == LOG_OF_TEST.keys()


@pytest.fixture(scope="module")
def recordings(logged: Path) -> dict[str, Path]:
    """Return the recordings of two tests, by the word of the test; each has a log beside it."""
    found = {}
    for word in ("square", "cube"):
        found[word] = logged.with_name(f"{word}.data")
        rtit.record([str(logged), str(logged.with_name(word)), word], output=found[word])
    return found


Query = Callable[..., str]


@pytest.fixture
def query(recordings: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> Query:
    """Return a function that runs `rtit coverage --by-test`, and returns its output."""

    def run(*options: str) -> str:
        assert main(["coverage", "--by-test", *map(str, recordings.values()), *options]) == 0
        return capsys.readouterr().out

    return run


def test_report_has_the_tests_that_logged_each_line_and_function(
    query: Query, recordings: dict[str, Path], logged: Path
) -> None:
    report = json.loads(query("--format", "json"))
    logs = {str(path): read_log(logged.with_name(word)) for word, path in recordings.items()}
    assert report["tests"] == [*logs]
    lines = report["files"][str(logged.with_suffix(".c"))]["contexts"]
    for line in LINES:
        ran = [test for test, (_, counts) in logs.items() if line in counts]
        assert lines.get(str(line), []) == ran, line
    for function in FUNCTIONS:
        ran = [test for test, (names, _) in logs.items() if function in names]
        assert report["functions"].get(function, []) == ran, function
    rows = [row.split() for row in query().splitlines()[1:]]
    assert {test: int(unique) for _, _, unique, test in rows} == {
        test: [*lines.values()].count([test]) for test in logs
    }


def test_inlined_function_and_line_are_found_by_name(
    query: Query, recordings: dict[str, Path], logged: Path
) -> None:
    cube = str(recordings["cube"])
    assert query("--function", "cube") == f"{cube}\n"
    (*_, line) = sorted(read_log(logged.with_name("cube"))[1].keys() - LINES_OF_MAIN)
    assert query("--line", f"logged.c:{line}") == f"{1:14}  {cube}\n"
    found = json.loads(query("--line", f"logged.c:{line}", "--format", "json"))
    assert found == {"line": f"logged.c:{line}", "tests": {cube: 1}}


def test_line_that_no_test_ran_lists_no_test(
    recordings: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["coverage", "--by-test", str(recordings["cube"]), "--line", f"logged.c:{NEVER}"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"no test ran logged.c:{NEVER}" in printed.err


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--function", "cubes"], "no test ran a function with this name; similar names: cube"),
        (["--line", "lgged.c:12"], "no test ran code of this file; similar names: logged.c"),
        (["--line", "logged.c"], "expected FILE:LINE"),
        (["--format", "lcov"], "--by-test goes with --format text or json"),
    ],
)
def test_error_says_how_to_ask(
    options: list[str],
    error: str,
    recordings: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["coverage", "--by-test", str(recordings["cube"]), *options]) == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--function", "f"], ["--line", "f:1"], ["--format", "json"]])
def test_questions_about_tests_need_by_test(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["coverage", *options]) == 2
    assert "need --by-test" in capsys.readouterr().err


def test_missing_default_folder_names_the_pytest_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["coverage", "--by-test"]) == 2
    assert "pytest --rtit-coverage" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", '{"test": 1}', '{"test": "t", "files": [1]}'])
def test_malformed_file_of_a_test_is_an_input_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.coverage.json"
    path.write_text(text)
    with pytest.raises(InputError, match="no coverage as pytest --rtit-coverage stores it"):
        read_coverage_of_test(path)


def test_folder_with_other_files_is_not_used_for_coverage(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("def test_it(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rtit-coverage", "tests"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "has files that rtit has not written" in ended.stderr
    assert [each.name for each in (tmp_path / "tests").iterdir()] == ["test_it.py"]
