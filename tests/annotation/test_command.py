"""`rtit annotate`: choice of the function, two recordings, missing sources, colours."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from programs.build import compiled
from rtit.annotation import annotate, match_counts
from rtit.cli.main import main
from rtit.errors import UsageError
from rtit.trace import Selection, Trace
from support.profiles import ProfiledProgram, record_program
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]

SOURCE = """
int printf(const char *, ...);
__attribute__((noipa)) static int work(int n) {
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += FACTOR * i;
    return sum;
}
__attribute__((noipa)) static int idle(int n) { return n; }
int main(int argc, char **argv) {
    printf("%d\\n", work(COUNT));
    return argc > 5 ? idle(argc) : 0;
}
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ProfiledProgram]:
    """Build and record the program above."""
    folder = tmp_path_factory.mktemp("annotated")
    source = folder / "annotated.c"
    source.write_text(SOURCE)

    def built(count: int, *flags: str, factor: int = 3) -> ProfiledProgram:
        words = ["-O1", "-static", f"-DCOUNT={count}", f"-DFACTOR={factor}", *flags]
        program = compiled("annotated", [str(source)], language="c", flags=words, directory=folder)
        return record_program(program, tmp_path_factory.mktemp("recording"))

    return built


@pytest.fixture(scope="module")
def plain(build: Callable[..., ProfiledProgram]) -> ProfiledProgram:
    return build(40, "-g")


def test_counts_of_another_recording_are_beside_instructions_of_the_same_code(
    plain: ProfiledProgram, build: Callable[..., ProfiledProgram]
) -> None:
    other_data = build(70, "-g").data
    with Trace(plain.data) as trace, Trace(other_data) as other_trace:
        first, other = annotate(trace, "work"), annotate(other_trace, "work")
    matched = match_counts(first, other)
    assert matched.has_same_code
    [loop] = first.loops
    assert (loop.iterations, matched.loops[loop.start].iterations) == (40, 70)
    body = [each for each in first.instructions if each.address in loop.addresses]
    assert {(each.count, matched.instructions[each.address].count) for each in body} == {(40, 70)}
    [line] = [each for each in first.lines if "FACTOR" in (each.text or "")]
    assert (line.count, matched.count_of_line(line)) == (40, 70)


def test_counts_of_another_build_are_beside_lines_only(
    plain: ProfiledProgram,
    build: Callable[..., ProfiledProgram],
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = build(70, "-g", "-O0").data
    assert main(["annotate", "work", str(plain.data), "--diff", str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["other_count"] for each in found["instructions"]} == {None}
    [line] = [each for each in found["lines"] if "FACTOR" in each["text"]]
    assert (line["count"], line["other_count"]) == (40, 70)
    assert main(["annotate", "work", str(plain.data), "--diff", str(other)]) == 0
    text = capsys.readouterr().out
    assert "the other recording has other machine code for this function" in text
    assert re.search(r"^ +40 +70 +6 +sum \+= FACTOR \* i;$", text, re.MULTILINE)


def test_file_without_debug_information_shows_only_machine_code(
    build: Callable[..., ProfiledProgram], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["annotate", "work", str(build(40).data)]) == 0
    text = capsys.readouterr().out
    assert "has no debug information for this function: compile with -g to see its source" in text
    assert "machine code" in text
    assert "  source" not in text
    assert "iterations least 40, mean 40.0, most 40" in text


def test_missing_source_file_is_named(
    build: Callable[..., ProfiledProgram], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved.c"
    moved.write_text(SOURCE)
    flags = ["-O1", "-g", "-static", "-DCOUNT=4", "-DFACTOR=3"]
    program = compiled("moved", [str(moved)], language="c", flags=flags, directory=tmp_path)
    moved.unlink()
    data = record_program(program, tmp_path).data
    assert main(["annotate", "work", str(data)]) == 0
    assert f"the source file {moved} is missing" in capsys.readouterr().out


def test_function_that_did_not_run_has_counts_of_zero(plain: ProfiledProgram) -> None:
    with Trace(plain.data) as trace:
        found = annotate(trace, "idle")
    assert found.calls == found.executed_instructions == 0
    assert found.notes == ("this function did not run",)
    assert {each.count for each in found.instructions} == {0}
    assert {each.count for each in found.lines} == {0}


def test_options_can_be_between_function_and_file(
    plain: ProfiledProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["annotate", "work", "--json", str(plain.data)]) == 0
    assert json.loads(capsys.readouterr().out)["function"] == "work"
    with pytest.raises(SystemExit) as ended:
        main(["annotate", "--json", "work", str(plain.data), "more"])
    assert ended.value.code == 2
    assert "unexpected argument 'more'" in capsys.readouterr().err


def test_unknown_function_lists_similar_names(
    plain: ProfiledProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["annotate", "wrok", str(plain.data)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("rtit annotate: function wrok: no mapped file has this function; ")
    assert "work" in error


def test_address_and_file_choose_one_of_several_functions(plain: ProfiledProgram) -> None:
    with Trace(plain.data) as trace:
        [named] = {annotate(trace, text).address for text in ("work", f"work@{plain.program.name}")}
        found = annotate(trace, f"{named + 1:#x}")  # a static program is loaded at its addresses
        assert (found.name, found.address) == ("work", named)
        with pytest.raises(UsageError, match="no function is at this address"):
            annotate(trace, "0x10")
        with pytest.raises(UsageError, match="no mapped file has this function"):
            annotate(trace, "work@libc.so.6")


def test_several_functions_of_one_name_are_an_error(tmp_path: Path) -> None:
    sources = []
    for name in ("first", "second"):
        path = tmp_path / f"{name}.c"
        body = "__attribute__((noipa)) static int same(int n) { return n + 1; }\n"
        path.write_text(f"{body}int {name}(int n) {{ return same(n); }}\n")
        sources.append(str(path))
    start = tmp_path / "main.c"
    start.write_text("int first(int), second(int); int main(void) { return first(1) - second(1); }")
    program = compiled(
        "same", [*sources, str(start)], language="c", flags=["-g", "-static"], directory=tmp_path
    )
    with Trace(record_program(program, tmp_path).data) as trace:
        with pytest.raises(UsageError, match="2 functions have this name") as error:
            annotate(trace, "same")
        addresses = re.findall(r"0x[0-9a-f]+", str(error.value.hint))
        lines = {annotate(trace, each).lines[0].file for each in addresses}
    assert lines == {*sources}


def test_threads_add_up(program: ProgramBuilder, record: Recorder) -> None:
    data = record([program("threads")]).data
    with Trace(data) as trace:
        whole = annotate(trace, "work")
        calls = [
            annotate(trace, "work", Selection(tids=(each.tid,))).calls for each in trace.threads
        ]
    assert whole.calls == sum(calls) == 4
    assert sorted(calls) == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colours_are_only_on_terminals(no_color: str, plain: ProfiledProgram) -> None:
    command = [sys.executable, "-m", "rtit", "annotate", "work", str(plain.data)]
    environment = {**os.environ, "NO_COLOR": no_color}
    piped = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    reader, terminal = pty.openpty()
    with open(reader, "rb", buffering=0) as output:  # noqa: PTH123 - a descriptor
        subprocess.run(command, env=environment, stdout=terminal, check=True)
        os.close(terminal)
        shown = b""
        while part := read_or_end(output.fileno()):
            shown += part
    assert b"\x1b" not in piped
    assert (b"\x1b[31m" in shown) == (not no_color)
    assert re.sub(rb"\x1b\[\d*m", b"", shown).replace(b"\r\n", b"\n") == piped


def read_or_end(terminal: int) -> bytes:
    """Return the next bytes of a terminal; none after its other end was closed."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def test_cold_part_belongs_to_the_function(tmp_path: Path) -> None:
    """GCC moves code that it expects to run rarely to a part of the function called NAME.cold."""
    source = tmp_path / "cold.c"
    source.write_text(
        "int printf(const char *, ...);\n"
        '__attribute__((cold, noipa)) void rare(int n) { printf("%d\\n", n); }\n'
        "__attribute__((noipa)) int usual(int n) {\n"
        "    if (n % 10 == 3) {\n"
        "        rare(n);\n"
        "    }\n"
        "    return n + 1;\n"
        "}\n"
        "int main(void) { int n = 0; while (n < 100) n = usual(n); return 0; }\n"
    )
    program = compiled(
        "cold", [str(source)], language="c", flags=["-O2", "-g", "-static"], directory=tmp_path
    )
    symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    if " usual.cold" not in symbols:
        pytest.skip("this compiler moves no code away")
    with Trace(record_program(program, tmp_path).data) as trace:
        found = annotate(trace, "usual")
    assert found.calls == 100
    [rare] = [each for each in found.instructions if each.target_name == "rare"]
    assert rare.count == 10
    assert [each.count for each in found.lines if each.line == 5] == [10]


def test_program_rebuilt_since_the_recording_is_named(
    plain: ProfiledProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copy2(shutil.which("true") or "/bin/true", other)
    assert main(["annotate", "work", str(plain.data), "--map", f"{plain.program}={other}"]) == 2
    error = capsys.readouterr().err
    assert "no mapped file has this function; " in error
    assert "has build id" in error
