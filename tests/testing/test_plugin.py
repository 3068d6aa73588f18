"""The pytest plugin, in separate pytest sessions."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import rtit
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.errors import InputError, UsageError
from rtit.testing.baseline import Baselines, StoredCount, parse_tolerance
from rtit.trace import Trace
from support.limits import assert_peak_memory
from support.recordings import record_to_end, thread_ends

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parent.parent.parent
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a test file with options."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(rtit.__file__).parent.parent))

    def ran(tests: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_them=tests)
        return pytester.runpytest_subprocess("-p", "rtit.testing.plugin", *options)

    return ran


@pytest.fixture(scope="module")
def pointers(
    program: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, int]:
    """Return a deterministic program, and the number of instructions that the tracer saw.

    The fixture has module scope: modules first loaded during a `pytester` test are loaded again by
    the next test, with other classes.
    """
    exe, folder = program("pointers"), tmp_path_factory.mktemp("pointers")
    request = RecordRequest(
        [str(exe)], output=folder / "data", truth=folder / "truth", env={"PATH": "/bin"}
    )
    record_to_end(start_recording(request))
    [(_, instructions, _)] = thread_ends(folder / "truth").values()
    return exe, instructions


def test_stat_counts_executed_instructions(run: Run, pointers: tuple[Path, int]) -> None:
    exe, instructions = pointers
    run(
        f"""
        def test_written_example(rtit):
            found = rtit.stat(["{exe}"], env={{"PATH": "/bin"}})
            assert found.stat.counts["instructions"] == {instructions}
            assert found.exit_code == 0
            recording = rtit.record(["{exe}"])
            assert recording.path.exists()
            rtit.assert_same_path(recording, rtit.record(["{exe}"]))
        """
    ).assert_outcomes(passed=1)


def test_baselines_are_stored_and_checked(
    run: Run, pytester: pytest.Pytester, pointers: tuple[Path, int]
) -> None:
    exe, instructions = pointers
    tests = f"""
        import pytest

        @pytest.mark.parametrize("what", ["a b"])
        def test_written_example(rtit, what):
            counted = rtit.stat(["{exe}"], env={{"PATH": "/bin"}})
            rtit.assert_instructions(counted)
            rtit.assert_instructions(7, name="another")
        """
    none = run(tests)
    none.assert_outcomes(failed=1)
    none.stdout.fnmatch_lines([f"*{instructions:,} instructions, and no baseline: *--rtit-update*"])
    run(tests, "--rtit-update").assert_outcomes(passed=1)
    run(tests).assert_outcomes(passed=1)
    path = pytester.path / "rtit_baselines" / "test_them.json"
    stored = json.loads(path.read_text())
    assert [*stored] == ["test_written_example[a b]", "test_written_example[a b]: another"]
    first = stored["test_written_example[a b]"]
    assert first["instructions"] == instructions
    # Half of it is a new function.
    [(most, count), *_] = sorted(first["functions"].items(), key=lambda each: -each[1])
    first["instructions"] -= count
    del first["functions"][most]
    path.write_text(json.dumps(stored))
    more = run(tests)
    more.assert_outcomes(failed=1)
    more.stdout.fnmatch_lines([f"*{count:,} more than*", f"*+{count:,}  {most}*"])
    # It is within 100%, and the baseline stays as it is.
    wide = tests.replace("(counted)", "(counted, within='400%')")
    run(wide).assert_outcomes(passed=1)
    run(wide, "--rtit-update").assert_outcomes(passed=1)
    assert json.loads(path.read_text()) == stored
    first["instructions"] = 10 * instructions
    path.write_text(json.dumps(stored))
    fewer = run(tests)
    fewer.assert_outcomes(failed=1)
    fewer.stdout.fnmatch_lines([f"*{9 * instructions:,} fewer than*(-90.000%)*"])
    path.write_text("[]")
    bad = run(tests)
    bad.assert_outcomes(failed=1)
    bad.stdout.fnmatch_lines(["*no counts as --rtit-update stores them*"])


def test_region_of_a_program_has_a_baseline_of_its_own(
    run: Run, pytester: pytest.Pytester, program: Callable[[str], Path]
) -> None:
    tests = f"""
        def test_written_example(rtit):
            argv, env = ["{program("regions")}"], {{"PATH": "/bin"}}
            whole = rtit.stat(argv, env=env)
            work = rtit.stat(argv, env=env, function="work")
            region = rtit.stat(argv, env=env, between=("work", "ping"))
            assert work.stat.counts["calls of the function"] == 6
            assert region.stat.counts["regions"] == 1
            numbers = [each.stat.counts["instructions"] for each in (work, region, whole)]
            assert numbers == sorted(numbers)
            rtit.assert_instructions(whole, "0%")
            rtit.assert_instructions(work, "0%", name="work")
            rtit.assert_instructions(region, "0%", name="region")
        """
    run(tests, "--rtit-update").assert_outcomes(passed=1)
    run(tests).assert_outcomes(passed=1)
    path = pytester.path / "rtit_baselines" / "test_them.json"
    stored = json.loads(path.read_text())
    row = stored["test_written_example: work"]
    assert any(name.startswith("leaf (regions") for name in row["functions"])
    assert row["instructions"] == sum(row["functions"].values())
    row["instructions"] += 1
    path.write_text(json.dumps(stored))
    fewer = run(tests)
    fewer.assert_outcomes(failed=1)
    fewer.stdout.fnmatch_lines(["*instructions, 1 fewer than*"])


def test_unknown_function_fails_the_test_with_similar_names(
    run: Run, program: Callable[[str], Path]
) -> None:
    failed = run(
        f"""
        def test_written_example(rtit):
            rtit.stat(["{program("regions")}"], function="wrk")
        """
    )
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["*--function wrk: no mapped file*similar names: *work*"])


def test_parallel_workers_store_all_baselines(run: Run, pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    count = 40
    tests = f"""
        import pytest

        @pytest.mark.parametrize("number", range({count}))
        def test_written_example(rtit, number):
            rtit.assert_instructions(1000 + number, name="first")
            rtit.assert_instructions(2000 + number, name="second")
        """
    run(tests, "-p", "xdist", "-n", "3", "--rtit-update").assert_outcomes(passed=count)
    stored = json.loads((pytester.path / "rtit_baselines" / "test_them.json").read_text())
    assert {key: row["instructions"] for key, row in stored.items()} == {
        f"test_written_example[{number}]: {name}": start + number
        for number in range(count)
        for name, start in (("first", 1000), ("second", 2000))
    }
    assert [each.name for each in (pytester.path / "rtit_baselines").iterdir()] == [
        "test_them.json"
    ]
    less = tests.replace("1000 + number", "1000 + number - 2 * (number == 7)")
    run(less, "-p", "xdist", "-n", "2").assert_outcomes(passed=count - 1, failed=1)


def test_recordings_of_failing_test_are_kept(
    run: Run, pytester: pytest.Pytester, pointers: tuple[Path, int]
) -> None:
    exe, instructions = pointers
    tests = f"""
        def test_failing_example(rtit):
            rtit.stat(["{exe}"], env={{"PATH": "/bin"}})
            assert not rtit.record(["{exe}"]).exit_code
            assert False

        def test_passing_example(rtit):
            rtit.record(["{exe}"])

        def test_without_recording(rtit):
            assert False

        def test_without_fixture():
            assert False
        """
    run(tests).assert_outcomes(failed=3, passed=1)
    assert not list(pytester.path.rglob("*.zip"))
    kept = run(tests, "--rtit-keep")
    kept.assert_outcomes(failed=3, passed=1)
    kept.stdout.fnmatch_lines(
        ["*rtit kept*", "*rtit-kept/test_them.py_test_failing_example/0.rtit.zip"]
    )
    found = sorted(pytester.path.rglob("*.zip"))
    folder = pytester.path / "rtit-kept" / "test_them.py_test_failing_example"
    assert found == [folder / "0.rtit.zip", folder / "1.rtit.zip"]
    with Trace(found[0]) as trace:
        assert trace.streams[0].counts().instructions == instructions
        assert trace.symbols.lookup(trace.streams[0].tid, 1 << 62, 0).name == ""
    run(tests, "--rtit-keep=elsewhere/there")
    assert (pytester.path / "elsewhere" / "there" / folder.name / "0.rtit.zip").exists()


def test_failing_program_fails_the_test(run: Run, program: Callable[[str], Path]) -> None:
    run(
        f"""
        import pytest

        def test_written_example(rtit):
            crash = ["{program("crash")}"]
            with pytest.raises(AssertionError, match="exit code 139"):
                rtit.stat(crash)
            assert rtit.stat(crash, check=False).exit_code == 128 + 11
            with pytest.raises(AssertionError, match="exit code 3"):
                rtit.stat(["/bin/sh", "-c", "exit 3"])
            with pytest.raises(AssertionError, match="DIFFERENT"):
                rtit.assert_same_path(rtit.record(crash), rtit.record(["/bin/true"]))
        """
    ).assert_outcomes(passed=1)


def test_environment_lacks_variables_of_pytest(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The length of the test's name would change the start-up of the program."""
    monkeypatch.setenv("GIVEN", "yes")
    run(
        """
        def test_written_example(rtit, capfd):
            assert rtit.record(["/usr/bin/env"]).exit_code == 0
            said = capfd.readouterr().out
            assert "PYTHONHASHSEED=0" in said
            assert "GIVEN=yes" in said
            assert "PYTEST_CURRENT_TEST" not in said
        """
    ).assert_outcomes(passed=1)


@pytest.mark.parametrize("text", ["0.1", "%", "x%", "-1%", "nan%", "inf%", ""])
def test_invalid_tolerance_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_tolerance(text)


def test_tolerance_is_a_fraction() -> None:
    assert parse_tolerance("0.5%") == 0.005
    assert parse_tolerance("0%") == 0


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"a": 1}', '{"a": {"instructions": -1, "functions": {}}}']
)
def test_invalid_baseline_is_an_input_error(tmp_path: Path, text: str) -> None:
    baselines = Baselines(tmp_path / "test_it.py")
    assert baselines.get("a") is None
    baselines.store("a", StoredCount(5, {"f": 4}))
    baselines.store("b", StoredCount(6, {}))
    assert baselines.get("a") == StoredCount(5, {"f": 4})
    baselines.path.write_text(text)
    with pytest.raises(InputError):
        baselines.get("a")


def test_large_baseline_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "rtit_baselines" / "test_it.json"
    path.parent.mkdir()
    for text in ("[[" + "[]," * (4 << 20) + "0]]", " " * (40 << 20)):
        path.write_text(text)
        with (
            assert_peak_memory(100),
            pytest.raises(InputError, match=r"more than [0-9,]+ (values|bytes)"),
        ):
            Baselines(tmp_path / "test_it.py").get("a")


def test_plugin_is_a_pytest_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "pytest" in project["optional-dependencies"]
    module = import_module(project["entry-points"]["pytest11"]["rtit"])
    assert callable(module.pytest_addoption)
