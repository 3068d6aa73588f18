"""Usage errors: one error line, and the next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.perfdata import Writer

REPORT = "  usage: rtit report [options] [FILE...]      (rtit report --help)\n"
RECORD = "  usage: rtit record [options] [--] PROGRAM [ARGS...]      (rtit record --help)\n"
COMMANDS = "  rtit --help lists the commands\n"


@pytest.mark.parametrize(
    ("words", "error", "next_step"),
    [
        (["recrod", "ls"], "rtit: unknown command 'recrod'; did you mean 'record'?", COMMANDS),
        (["instr"], "rtit: unknown command 'instr'; did you mean 'instructions'?", COMMANDS),
        (["xyzzy"], "rtit: unknown command 'xyzzy'", COMMANDS),
        (["--jsn"], "rtit: unknown option '--jsn'", COMMANDS),
        (
            ["record", "--filtr", "filter main", "--", "ls"],
            "rtit record: unknown option --filtr; did you mean --filter?",
            RECORD,
        ),
        (
            ["record", "--snapshto=4M", "--", "ls"],
            "rtit record: unknown option --snapshto; did you mean --snapshot?",
            RECORD,
        ),
        (
            ["report", "--tidd", "1"],
            "rtit report: unknown option --tidd; did you mean --tid?",
            REPORT,
        ),
        (
            ["report", "--cpu_model=6/94/3"],
            "rtit report: unknown option --cpu_model; did you mean --cpu-model?",
            REPORT,
        ),
        # similar to no option: dashes do not count
        (["report", "--zzzz"], "rtit report: unknown option --zzzz", REPORT),
        (["report", "--abc"], "rtit report: unknown option --abc", REPORT),
        (
            ["info", "perf.data", "more"],
            "rtit info: unexpected argument 'more'",
            REPORT.replace("report", "info").replace("...", ""),
        ),
        (["report", "--top"], "rtit report: --top: expected one argument", REPORT),
        (
            ["report", "--top", "x"],
            "rtit report: --top: expected a whole number, got 'x'",
            REPORT,
        ),
        (
            ["calls", "--json", "--folded"],
            "rtit calls: --folded: not allowed with argument --json",
            "  usage: rtit calls [options] [FILE...]      (rtit calls --help)\n",
        ),
        (
            ["diff", "a"],
            "rtit diff: the following arguments are required: B",
            "  usage: rtit diff [options] A B      (rtit diff --help)\n",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_give_an_error_and_a_next_step(
    words: list[str], error: str, next_step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{error}\n{next_step}")


def test_wrong_choice_lists_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(["record", "--backend", "gdb", "ls"]) == 2
    error, usage = capsys.readouterr().err.splitlines()
    assert error.startswith("rtit record: --backend: invalid choice: 'gdb'")
    assert all(name in error for name in ("auto", "qemu", "ptrace", "perf"))
    assert f"{usage}\n" == RECORD


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["--time", "5"],
            "--time 5: expected FROM,TO (either may be empty)\n"
            "  examples: --time 1000,2000   --time 1.5,   --time ,0.25\n",
        ),
        (
            ["--range", "10"],
            "--range 10: expected START-END in hexadecimal, END excluded\n"
            "  example: --range 401000-401080\n",
        ),
        (
            ["--tid", "ls"],
            "--tid ls: expected numbers, separated by commas; got 'ls'\n"
            "  usage: rtit instructions [options] [FILE]      (rtit instructions --help)\n",
        ),
    ],
)
def test_wrong_value_gives_an_example_or_the_usage(
    words: list[str], error: str, empty_recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["instructions", *words, empty_recording]) == 2
    assert capsys.readouterr().err == f"rtit instructions: {error}"


def test_missing_recording_suggests_rtit_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 1
    assert capsys.readouterr().err == (
        "rtit report: no recording at perf.data\n"
        "  make a recording first:  rtit record -- PROGRAM\n"
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["report", "perf.daat"], "no recording at perf.daat"),
        (["packets", "--raw", "perf.daat"], "perf.daat: No such file or directory"),
        (["report", "-i", "perf.data", "--symfs", "perf.daat"], "perf.daat: no such directory"),
        (["stat", "--baseline", "perf.daat"], "perf.daat: No such file or directory"),
    ],
)
def test_misspelt_file_name_suggests_a_file_of_similar_name(
    words: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("perf.data", "other.txt"):
        (tmp_path / name).touch()
    assert main(words) == 1
    expected = f"rtit {words[0]}: {error}\n  did you mean perf.data?\n"
    assert capsys.readouterr().err == expected


def test_similar_name_keeps_the_folder_and_is_not_the_missing_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.data").symlink_to("nowhere")
    assert main(["report", str(tmp_path / "a.data")]) == 1
    assert "did you mean" not in capsys.readouterr().err
    (tmp_path / "ab.data").touch()
    assert main(["report", str(tmp_path / "a.data")]) == 1
    assert f"  did you mean {tmp_path / 'ab.data'}?\n" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["record"], ["stat"], ["record", "-q"]])
def test_misspelt_program_suggests_a_program_of_similar_name(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, mode in (("hot", 0o755), ("hto.c", 0o644)):
        (tmp_path / name).touch(mode)
    assert main([*words, "--", "./hto"]) == 127
    expected = f"rtit {words[0]}: ./hto: no such program\n  did you mean ./hot?\n"
    assert capsys.readouterr().err == expected
    assert main([*words, "--", "hto"]) == 127
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--symfs", "--buildid-dir"])
def test_missing_folder_of_code_is_an_error(
    option: str, empty_recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", empty_recording, option, "/nowhere/x"]) == 1
    assert capsys.readouterr().err == "rtit report: /nowhere/x: no such directory\n"


def test_other_file_format_suggests_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.data"
    path.write_bytes(b"hello\n")
    error = f"{path} is not a perf.data file: it begins with 'hello\\n' (offset 0)\n"
    assert main(["report", str(path)]) == 1
    next_step = "  to read raw PT, use --raw\n"
    assert capsys.readouterr().err == f"rtit report: {error}{next_step}"
    # a command without --raw
    assert main(["pack", str(path)]) == 1
    assert capsys.readouterr().err == f"rtit pack: {error}"


def test_options_after_the_program_are_not_checked(capfd: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(["record", "--jsn", "x", "echo", "--filtr"]) == 2
    assert "--filtr" not in capfd.readouterr().err


def _exit_code(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.fixture
def empty_recording(tmp_path: Path) -> str:
    """A recording of one packet."""
    with Writer(tmp_path / "perf.data", config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        out.auxtrace(7, 7, bytes([0x02, 0x82] * 8), None, 1)
    return str(tmp_path / "perf.data")
