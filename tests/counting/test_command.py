"""`rtit stat -- program`: the program's own behaviour, counts beside it, and what differs."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.counting.counted_run import RunVariation
from rtit.profile.losses import ProfileLosses
from rtit.profile.stat import Stat
from support.recordings import RTIT, require_backend

ProgramBuilder = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _qemu() -> None:
    require_backend("qemu")


def test_stat_keeps_output_and_exit_code_of_the_program(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["stat", "--", "/bin/sh", "-c", "echo out; echo err >&2; exit 7"]) == 7
    said = capfd.readouterr()
    assert said.out == "out\n"
    first, *lines = said.err.splitlines()
    assert first == "err"
    assert [line.split(maxsplit=1)[1] for line in lines][:2] == [
        "instructions",
        "conditional branches",
    ]


def test_stat_fails_if_instructions_exceed_the_baseline(
    program: ProgramBuilder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output, name = str(tmp_path / "counts.json"), str(program("recursion"))
    assert main(["stat", "--json", "-o", output, "--", name]) == 0
    found = json.loads(Path(output).read_text())
    assert capfd.readouterr().err == ""
    against = ["stat", "--baseline", output, "--fail-above", "0%", "--runs", "2", "--", name]
    assert main(against) == 0
    said = capfd.readouterr().err
    assert "the same in all 2 runs" in said
    assert "+0  instructions since the baseline" in said
    assert main(["stat", "--json", "-o", f"{output}.new", "--baseline", output, "--", name]) == 0
    assert "+0  instructions since the baseline" in capfd.readouterr().err
    assert json.loads(Path(f"{output}.new").read_text())["counts"] == found["counts"]
    assert main(["stat", "--json", "--baseline", output, "--", name]) == 0
    assert json.loads(capfd.readouterr().err)["counts"] == found["counts"]
    found["counts"]["instructions"] -= 1
    Path(output).write_text(json.dumps(found))
    assert main(against) == 1


def test_missing_counts_fail_the_comparison_with_a_baseline(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "counts.json")
    assert main(["stat", "--json", "-o", output, "--", "/bin/true"]) == 0
    words = ["--baseline", output, "--fail-above", "0%", "--", "/bin/true"]
    limited = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *RTIT, "stat"]
    ended = subprocess.run([*limited, *words], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "are missing: File too large" in ended.stderr
    assert ended.stderr.endswith("some counts are missing, so rtit cannot check --fail-above\n")
    assert "Traceback" not in ended.stderr


def test_unprintable_file_names_are_escaped_in_the_counts_file(tmp_path: Path) -> None:
    program = tmp_path / "a\x1b[31m\u2028b"
    shutil.copy("/bin/true", program)
    counts_file = tmp_path / "counts"
    assert main(["stat", "--per", "dso", "-o", str(counts_file), "--", str(program)]) == 0
    lines = counts_file.read_text().split("\n")
    assert all(line.isprintable() for line in lines)
    assert any(r"a\x1b[31m\u2028b" in line for line in lines)


def test_runs_with_different_counts_are_reported_with_reasons(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f"for i in $(cat {tmp_path}/n 2>&-); do :; done; echo 1 2 3 4 5 6 > {tmp_path}/n"
    output = tmp_path / "counts.json"
    command = ["stat", "--runs", "2", "--", "/bin/sh", "-c", script]
    assert main(command) == 0
    said = capfd.readouterr().err
    assert "differences between 2 runs" in said
    assert "other possible causes" in said
    (tmp_path / "n").unlink()
    assert main(["stat", "--json", "-o", str(output), *command[1:]]) == 0
    found = json.loads(output.read_text())
    runs = found["runs"]["instructions"]
    assert len({*runs}) == 2
    assert found["counts"]["instructions"] == min(runs)
    assert found["runs"]["counts"]["instructions"] == sorted(runs)
    assert found["runs"]["why"]


def test_signal_ends_stat_without_further_runs(tmp_path: Path) -> None:
    wait = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done"
    script = f"echo run >> {tmp_path}/n; kill -TERM $PPID; {wait}"
    command = [*RTIT, "stat", "--runs", "3", "--", "/bin/sh", "-c", script]
    # In a separate process: here any thread, even one of NumPy's, could get the signal.
    ended = subprocess.run(command, capture_output=True, check=False, timeout=300)
    assert ended.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "n").read_text() == "run\n"


def test_addresses_beyond_max_edges_are_reported(capfd: pytest.CaptureFixture[str]) -> None:
    few = ["stat", "--max-edges", "3", "--per", "function", "--", "/bin/true"]
    assert main(few) == 0
    assert "beyond --max-edges" in capfd.readouterr().err
    few[2] = "100000"
    assert main(few) == 0
    assert "places" not in capfd.readouterr().err


def run(threads: int, **functions: int) -> Stat:
    counts = {"instructions": sum(functions.values()), "threads": threads, "processes": 1}
    found = Counter({(name, "libpython3.11.so.1.0"): count for name, count in functions.items()})
    files = Counter({"libpython3.11.so.1.0": counts["instructions"]})
    return Stat(counts, found, files, Counter(), ProfileLosses())


def test_run_variation_lists_differing_counts_and_functions() -> None:
    spread = RunVariation([run(1, a=5, b=9, c=1), run(1, a=5, b=7, c=9)])
    assert spread.run_with_fewest_instructions is spread.runs[0]
    assert spread.differing_counts == [("instructions", 15, 21)]
    file = "(libpython3.11.so.1.0)"
    assert spread.differing_functions == [(f"c {file}", 1, 9), (f"b {file}", 7, 9)]
    assert "PYTHONHASHSEED" in spread.explain_differences()[0]
    assert not any("threads" in text for text in spread.explain_differences())
    assert any(
        "threads" in text for text in RunVariation([run(2, a=1), run(2, a=2)]).explain_differences()
    )
    assert RunVariation([run(2, a=1), run(2, a=1)]).explain_differences() == []


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--"], 2, "no program given"),
        (["x.data", "--", "/bin/true"], 2, "a recording or a program, not both"),
        (["--raw", "file", "--", "/bin/true"], 2, "a recording or a program, not both"),
        (["--tid", "1", "--", "/bin/true"], 2, "--tid works only with a recording"),
        (["--symfs", "/", "--", "/bin/true"], 2, "--symfs works only with a recording"),
        (["--map", "/a=/b", "--", "/bin/true"], 2, "--map works only with a recording"),
        (["--image", "file@1000", "--", "/bin/true"], 2, "--image works only with a recording"),
        (["--baseline", "/proc/absent/file", "--", "/bin/true"], 125, "/proc/absent/file"),
        (["--baseline", "/bin/true", "--", "/bin/true"], 125, "/bin/true: not JSON"),
        (["--runs", "2", "x.data"], 2, "need a program"),
        (["--", "/proc/absent"], 127, "/proc/absent"),
        (["--", "/etc/passwd"], 126, "/etc/passwd"),
        (["-o", "/proc/absent/file", "--", "/bin/true"], 125, "/proc/absent/file"),
    ],
)
def test_stat_refuses_unusable_options_and_programs(
    words: list[str], code: int, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["stat", *words]) == code
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("rtit stat: ")
    assert text in said.err
    assert len(said.err.splitlines()) == (2 if code == 2 else 1)


def test_zero_runs_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["stat", "--runs", "0", "--", "/bin/true"])
    assert "expected a number of runs, got '0'" in capsys.readouterr().err
