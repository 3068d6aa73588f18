"""Differences of recordings of one program with different arguments."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import rtit
from programs.build import SOURCES, CannotBuildError, compiled
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from rtit.diff.diff_traces import diff_traces
from rtit.diff.difference import (
    ComparisonAfterDivergence,
    Difference,
    ThreadDifference,
    format_thread,
)
from support.recordings import record_to_end

SOURCE = SOURCES / "parting.c"
Ways = Callable[..., Path]


@pytest.fixture(scope="session")
def record_each_argument(tmp_path_factory: pytest.TempPathFactory) -> Ways:
    """Record the program with an argument, each once.

    All runs have the same stack contents at the same addresses, in any folder of the suite: strlen
    takes another path for a string near the end of its page.
    """
    flags = ["-g", "-O1", "-static-pie", "-fPIE", "-pthread"]
    try:
        program = compiled("parting", [str(SOURCE)], language="c", flags=flags)
    except CannotBuildError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("ways")
    shutil.copy(program, folder / "parting")
    made: dict[tuple[object, ...], Path] = {}

    def recorded(
        argument: str, event: str = "intel_pt//u", *, aslr: bool = False, attempt: int = 0
    ) -> Path:
        key = (argument, event, aslr, attempt)
        if key not in made:
            request = RecordRequest(
                ["./parting", argument.ljust(6, "-")],
                cwd=folder,
                env={"PATH": "/usr/bin:/bin"},
                backend="ptrace",
                event=event,
                aslr=aslr,
                output=folder / f"{len(made)}.data",
            )
            assert record_to_end(start_recording(request)).exit_code == 0
            made[key] = folder / f"{len(made)}.data"
        return made[key]

    return recorded


def line_of(text: str) -> str:
    """Return `parting.c:12`, of the line with this text."""
    lines = SOURCE.read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if text in line]
    return f"{SOURCE.name}:{number}"


def differ(left: Path, right: Path) -> Difference:
    with rtit.Trace(left) as one, rtit.Trace(right) as other:
        return diff_traces(one, other)


def test_different_load_address_and_packets_are_no_difference(record_each_argument: Ways) -> None:
    """With ASLR and other PSB periods, load address and packets differ; the path does not."""
    one = record_each_argument("plain")
    # Rarely a string at the start lies near the end of its page, which is another path.
    for attempt in range(4):
        other = record_each_argument("plain", "intel_pt/psb_period=0/u", aslr=True, attempt=attempt)
        if differ(one, other).has_equal_paths:
            break
    with rtit.Trace(one) as left, rtit.Trace(other) as right:
        starts = [next(iter(each.streams[0].instructions())).ip[0].item() for each in (left, right)]
        assert starts[0] != starts[1]
        found = diff_traces(left, right)
        instructions = sum(stream.counts().instructions for stream in left.streams)
    assert found.has_equal_paths
    assert found.equal_instructions == instructions > 1000
    assert not found.functions
    rtit.assert_same_path(one, other)


def test_flipped_comparison_in_loop_is_located(record_each_argument: Ways) -> None:
    found = differ(record_each_argument("plain"), record_each_argument("flip"))
    assert not found.has_equal_paths
    [thread] = [each for each in found.threads if not each.identical]
    last = thread.before[-1]
    assert last.symbol.startswith("loop")
    assert last.source == line_of("if (i == 777 && flip)")
    assert last.assembly.startswith("j")
    left, right = thread.after
    assert {each.source for each in right} >= {line_of("sum += 3;")} or {
        each.source for each in left
    } >= {line_of("sum += 3;")}
    # The divergence is in iteration 777 of 1000.
    assert thread.instructions > 777 * 3
    changed = {each.what[0][0]: each.right - each.left for each in found.functions}
    assert changed.keys() == {"loop"}
    assert 0 < abs(changed["loop"]) <= 3
    [context] = found.contexts
    assert [name for name, _ in context.what[-2:]] == ["main", "loop"]
    assert context.right - context.left == changed["loop"]
    # The rest of the loop and of the program is equal.
    assert_whole(record_each_argument, thread, found)
    assert thread.later is not None
    assert max(thread.later.unmatched) < 50
    assert thread.later.instructions > 222 * 3


def assert_whole(record_each_argument: Ways, thread: ThreadDifference, found: Difference) -> None:
    """Equal, left-only and right-only instructions add up to the counts of both threads."""
    later = thread.later
    assert later is not None
    assert later.whole
    with rtit.Trace(record_each_argument("plain")) as trace:
        stream = trace.threads[found.threads.index(thread)]
        assert thread.left == stream.title
        whole = stream.counts().instructions
    assert thread.instructions + later.instructions + later.unmatched[0] == whole
    more = sum(each.right - each.left for each in found.functions)
    assert later.unmatched[1] - later.unmatched[0] == more


def test_extra_call_is_located(record_each_argument: Ways) -> None:
    found = differ(record_each_argument("plain"), record_each_argument("call"))
    [thread] = [each for each in found.threads if not each.identical]
    assert_whole(record_each_argument, thread, found)
    [alone] = [each for each in found.contexts if each.is_one_sided]
    assert [name for name, _ in alone.what[-2:]] == ["main", "extra"]
    assert alone.right == found.functions[0].right
    assert thread.before[-1].source == line_of("if (call)")
    assert any(each.symbol == "extra" for each in thread.after[1])
    calls = {tuple(name for name, _ in each.what): (each.left, each.right) for each in found.calls}
    assert calls["main", "extra"] == (0, 1)
    assert found.functions[0].left == 0 or found.functions[0].what[0][0] == "extra"


def test_swapped_threads_diverge_with_equal_counts(record_each_argument: Ways) -> None:
    found = differ(record_each_argument("plain"), record_each_argument("swap"))
    assert [each.identical for each in found.threads].count(False) >= 2
    for thread in found.threads[1:]:
        assert not thread.identical
        assert {side[0].symbol.partition("+")[0] for side in thread.after} == {"sum_up", "multiply"}
    names = {each.what[0][0] for each in found.functions}
    assert not names & {"sum_up", "multiply"}  # equal counts, by other threads


def test_divergence_in_library_reconverges_in_program(record_each_argument: Ways) -> None:
    found = differ(record_each_argument("plain"), record_each_argument("longer"))
    [thread] = [each for each in found.threads if not each.identical]
    assert not thread.before[-1].source.startswith(SOURCE.name)
    # The path returns into the program.
    assert_whole(record_each_argument, thread, found)
    assert thread.later is not None
    assert max(thread.later.unmatched) < thread.later.instructions


def test_difference_in_the_dynamic_loader_gets_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loader copies and parses the environment."""
    for name, value in (("one", "x"), ("other", "LD_BIND_NOW")):
        request = RecordRequest(["/bin/true"], env={value: "1"}, output=tmp_path / name)
        record_to_end(start_recording(request))
    assert main(["diff", str(tmp_path / "one"), str(tmp_path / "other")]) == 1
    hint = "  in the dynamic loader: record with --start-at main to leave it out\n"
    assert hint in capsys.readouterr().out


def test_early_exit_has_threads_without_counterpart(record_each_argument: Ways) -> None:
    found = differ(record_each_argument("plain"), record_each_argument("early"))
    thread = found.threads[0]
    assert not thread.identical
    assert len(found.threads) == 3
    assert [each.right for each in found.threads[1:]] == [None, None]
    assert thread.later is not None
    assert thread.later.whole


def test_diff_command_prints_text_and_json(
    record_each_argument: Ways, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, flip = str(record_each_argument("plain")), str(record_each_argument("flip"))
    assert main(["diff", plain, plain]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("identical: ")
    assert main(["diff", plain, flip]) == 1
    printed = capsys.readouterr().out
    assert f"({line_of('if (i == 777 && flip)')})" in printed
    assert "DIFFERENT: 1 of 3 threads" in printed
    assert "dynamic loader" not in printed
    assert main(["diff", "--json", plain, flip]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["identical"]
    assert found["threads"][0]["before"][-1]["source"] == line_of("if (i == 777 && flip)")
    assert main(["diff", "--context", "0", plain, flip]) == 2
    with pytest.raises(AssertionError, match=r"DIFFERENT: 1 of 3 threads"):
        rtit.assert_same_path(plain, flip)


def test_text_says_why_paths_are_not_compared_further() -> None:
    later = ComparisonAfterDivergence(0, (0, 0), 1, (), whole=False)
    *_, line = format_thread(ThreadDifference("a", "b", 1, 1, identical=False, later=later))
    assert line.strip().startswith("not compared further: ")
    assert line.endswith("or diverge too often")
