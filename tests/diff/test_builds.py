"""Two builds of one program are compared by function."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import rtit
from programs.build import SOURCES, CannotBuildError, compiled
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from rtit.diff.compare_paths import (
    _columns_of_complete_steps,
    _RunColumns,
    _shorten_unfinished_step,
)
from rtit.diff.diff_traces import diff_traces
from rtit.diff.difference import Difference, format_difference
from rtit.diff.matched_builds import BY_FUNCTION, EXACT, BuildMatching
from rtit.trace import End
from support.recordings import record_to_end, require_backend

SOURCE = SOURCES / "builds.c"
Built = Callable[..., Path]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Record a build with these macros, each once, under QEMU."""
    require_backend("qemu")
    made: dict[tuple[str, ...], Path] = {}

    def recorded(
        *flags: str, name: str = "prog", strip: bool = False, filters: Sequence[str] = ()
    ) -> Path:
        key = (*flags, name, str(strip), *filters)
        if key not in made:
            try:
                exe = compiled("builds", [str(SOURCE)], language="c", flags=["-g", "-O1", *flags])
            except CannotBuildError as error:
                pytest.skip(str(error))
            # All paths have the same length, which influences the start of a program.
            folder = tmp_path_factory.mktemp(f"build{len(made):04}", numbered=False)
            program = folder / name
            shutil.copy(exe, program)
            if strip:
                subprocess.run(["strip", str(program)], check=True)
            request = RecordRequest(
                [str(program)],
                backend="qemu",
                output=folder / "data",
                env={"PATH": "/bin"},
                filters=filters,
            )
            record_to_end(start_recording(request))
            made[key] = folder / "data"
        return made[key]

    return recorded


def differ(left: Path, right: Path) -> Difference:
    with rtit.Trace(left) as one, rtit.Trace(right) as other:
        return diff_traces(one, other)


def symbol_name(symbol: str) -> str:
    return symbol.partition("+")[0]


def line_of(text: str) -> str:
    lines = SOURCE.read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if text in line]
    return f"{SOURCE.name}:{number}"


@pytest.mark.parametrize("static", [True, False])
def test_flipped_comparison_diverges_at_its_branch(built: Built, static: bool) -> None:
    """Both builds have the same layout, so the divergence is exact."""
    flags = ["-static"] if static else []
    found = differ(built(*flags), built(*flags, "-DLESS=>"))
    [thread] = found.threads
    assert not thread.identical
    last = thread.before[-1]
    # The first comparison, of 3 with 5, is true in the first build alone.
    assert symbol_name(last.symbol) == "before"
    assert last.source == line_of("if (a LESS b) {")
    assert [len(each) > 0 for each in thread.after] == [True, True]
    [build] = found.builds
    assert "compared by the" in build
    changed = {each.what[0][0] for each in found.functions}
    assert {"before", "sort"} <= changed
    calls = {tuple(name for name, _ in each.what): each for each in found.calls}
    # Insertion sort compares each number until its position is found.
    sorting = calls["sort", "before"]
    assert (sorting.left, sorting.right) == (comparisons(less=True), comparisons(less=False))


def comparisons(*, less: bool) -> int:
    """Return the comparisons that the insertion sort of the program makes."""
    numbers, count = [5, 3, 9, 1, 7, 2, 8, 6, 4, 0], 0
    for i in range(1, len(numbers)):
        at = i
        while at > 0:
            count += 1
            if (numbers[at] < numbers[at - 1]) != less:
                break
            numbers[at], numbers[at - 1] = numbers[at - 1], numbers[at]
            at -= 1
    return count


def test_address_filter_leaves_out_calling_contexts(built: Built) -> None:
    """`sort`, which calls `before`, is not traced: `main` must not appear as its caller."""
    filters = ["filter main", "filter before"]
    found = differ(built("-static", filters=filters), built("-static", "-DLESS=>", filters=filters))
    changed = {each.what: (each.left, each.right) for each in found.functions}
    assert changed.keys() == {(("before", "prog"),)}
    assert not found.calls
    assert not found.contexts
    [sentence] = found.too_deep
    assert "address filter" in sentence
    assert sentence in format_difference(found)


@pytest.mark.parametrize("static", [True, False])
def test_extra_call_diverges_in_its_caller(built: Built, static: bool) -> None:
    """The longer build of `total` calls `noted` in its seventh iteration."""
    flags = ["-static"] if static else []
    found = differ(built(*flags), built(*flags, "-DMORE"))
    [thread] = found.threads
    assert not thread.identical
    assert symbol_name(thread.before[-1].symbol) == "total"
    left, right = thread.after
    assert symbol_name(right[0].symbol) == "noted"
    assert symbol_name(left[0].symbol) == "twice"
    calls = {tuple(name for name, _ in each.what): each for each in found.calls}
    extra = calls["total", "noted"]
    assert (extra.left, extra.right) == (0, 1)
    assert ("total", "twice") not in calls
    # Everything else is equal: only the second has the call, and the rest of its step.
    assert thread.later is not None
    assert thread.later.whole
    assert thread.later.times == 1
    [alone] = [each for each in found.contexts if each.is_one_sided]
    assert [name for name, _ in alone.what[-3:]] == ["main", "total", "noted"]
    assert alone.right == thread.after[1][0].symbol.count("noted")


@pytest.mark.parametrize("static", [True, False])
def test_longer_function_has_equal_path_and_other_count(built: Built, static: bool) -> None:
    """The path by functions is equal; the counts show the function that changed."""
    flags = ["-static"] if static else []
    one, other = built(*flags), built(*flags, "-DLONGER")
    found = differ(one, other)
    assert found.has_equal_paths
    with rtit.Trace(one) as left, rtit.Trace(other) as right:
        counts = [trace.threads[0].counts().instructions for trace in (left, right)]
    assert [found.equal_instructions, found.right_equal_instructions] == counts
    assert counts[1] > counts[0] > 1000
    text = f"{counts[0]:,} and {counts[1]:,} instructions"
    assert f"equal by function: {text}" in "\n".join(format_difference(found))
    own = [each for each in found.functions if each.what[0][1] == "prog"]
    assert own[0].what == (("mixed", "prog"),)
    assert own[0].right > own[0].left > 0
    assert len(own) == 1


def test_inlined_function_diverges_at_each_call(built: Built) -> None:
    found = differ(built("-static"), built("-static", "-DINLINED"))
    [thread] = found.threads
    assert not thread.identical
    left, right = thread.after
    assert symbol_name(thread.before[-1].symbol) == "total"
    assert (symbol_name(left[0].symbol), symbol_name(right[0].symbol)) == ("twice", "mixed")
    # The paths reconverge after each of the ten inlined calls.
    assert thread.later is not None
    assert thread.later.whole
    own = {each.what[0][0]: (each.left, each.right) for each in found.functions}
    assert own["twice"][0] == thread.later.unmatched[0] > 0 == thread.later.unmatched[1]
    assert own["twice"][1] == 0
    assert thread.later.times == 20
    assert [each.times for each in thread.later.divergences] == [10, 10]
    assert symbol_name(thread.later.divergences[0].left) == "twice"
    assert symbol_name(thread.later.divergences[0].right) == "mixed"
    # Only the calling context of `mixed` differs.
    contexts = {tuple(name for name, _ in each.what[-2:]): each for each in found.contexts}
    assert contexts.keys() == {("total", "twice"), ("total", "mixed")}
    inlined, direct = contexts["total", "twice"], contexts["total", "mixed"]
    assert (inlined.right, direct.left) == (0, 0)
    assert inlined.left == own["twice"][0] + direct.right
    calls = {tuple(name for name, _ in each.what): (each.left, each.right) for each in found.calls}
    assert calls == {
        ("total", "twice"): (10, 0),
        ("twice", "mixed"): (10, 0),
        ("total", "mixed"): (0, 10),
    }


def test_deeper_recursion_diverges_in_its_function(built: Built) -> None:
    """The body of the changed function is not compared; its calls are."""
    found = differ(built("-static"), built("-static", "-DDEEPER"))
    [thread] = found.threads
    assert not thread.identical
    assert symbol_name(thread.before[-1].symbol) == "down"
    [calls] = [each for each in found.calls if [name for name, _ in each.what] == ["down", "down"]]
    assert (calls.left, calls.right) == (3, 4)


def test_equal_source_is_identical(built: Built) -> None:
    """A renamed copy is the same file; a build with another layout is identical by function."""
    found = differ(built("-static"), built("-static", name="copy"))
    assert found.has_equal_paths
    assert not found.builds
    assert not found.functions
    found = differ(
        built("-static"), built("-static", "-fno-toplevel-reorder", "-falign-functions=64")
    )
    assert found.builds
    assert found.has_equal_paths
    assert not found.calls
    without_changes = Difference(found.threads, builds=found.builds)
    assert [*format_difference(without_changes)][-1].startswith("equal by function: ")


def test_programs_with_different_names_are_paired(
    built: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = built("-static"), built("-static", "-DLONGER", name="next")
    found = differ(one, other)
    assert found.has_equal_paths
    assert found.functions[0].what == (("mixed", "prog"),)
    assert main(["diff", str(one), str(other)]) == 0
    printed = capsys.readouterr().out
    assert "are two builds: compared by the" in printed
    assert printed.splitlines()[-1].startswith("equal by function, but counts differ: ")
    assert main(["diff", "--json", str(one), str(other)]) == 0
    assert len(json.loads(capsys.readouterr().out)["builds"]) == 1


@pytest.mark.parametrize("strips_both", [False, True])
def test_stripped_build_has_no_common_functions(built: Built, strips_both: bool) -> None:
    """An address is no name: other functions are there in the other build."""
    found = differ(built("-static", strip=strips_both), built("-static", "-DLONGER", strip=True))
    assert found.has_equal_paths is strips_both  # only the file is compared
    [build] = found.builds
    assert "no function name occurs in both" in build


def test_functions_of_equal_layout_are_exact(built: Built) -> None:
    """Functions with the same source are compared by instruction, at any offset."""
    with rtit.Trace(built("-static")) as one, rtit.Trace(built("-static", "-DLONGER")) as other:
        [pair] = BuildMatching(one, other).different_builds
        assert {"mixed", "before", "total"} <= pair.common_functions.keys()
        exact = {}
        for name in ("mixed", "before", "total", "sort", "main"):
            positions = []
            for side, file in enumerate((pair.left, pair.right)):
                assert file.symbols is not None
                [function] = file.symbols.find_by_name(name)[:1]
                offsets = np.array([function.offset, function.offset + 4], np.uint64)
                found, known = pair.build_of_side(side).positions_of_offsets(offsets)
                positions.append((found.tolist(), known.tolist()))
            assert positions[0] == positions[1]
            exact[name] = all(positions[0][1])
    assert exact == {"mixed": False, "before": True, "total": True, "sort": True, "main": True}


def test_long_inexact_step_is_kept_in_three_rows() -> None:
    """A loop without calls in a changed function: the shortened step equals the whole one."""
    count = 1000
    numbers = np.arange(1, count + 1, dtype=np.uint64)

    def rows(precision: int) -> _RunColumns:
        same = np.zeros(count, np.uint64)
        return _RunColumns(
            same, same, np.full(count, precision, np.uint8), numbers.copy(), 10 * numbers,
            20 * numbers, 30 * numbers, np.full(count, End.CONDITIONAL, np.uint8),
        )  # fmt: skip

    short = _shorten_unfinished_step(rows(BY_FUNCTION))
    assert len(short.file) == 3
    step = _columns_of_complete_steps(short, np.array([2]))
    assert step.instructions.tolist() == [count * (count + 1) // 2]
    ends = [[int(column[0]) for column in each] for each in (step.first, step.last)]
    assert ends == [[10, 20, 1, 30, 1], [10 * count, 20 * count, count, 30 * count, 1]]
    again = _shorten_unfinished_step(short)
    assert all((one == other).all() for one, other in zip(again, short, strict=True))
    assert len(_shorten_unfinished_step(rows(EXACT)).file) == count
