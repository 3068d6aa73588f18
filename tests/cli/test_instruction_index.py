"""`rtit instructions --index` lists the instructions at some positions of each thread."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.instrumented import recorded
from rtit import Selection
from rtit.cli.main import main
from rtit.errors import UsageError
from rtit.trace import Trace
from rtit.views.instructions import list_instructions

NATIVE, DETAILED = ["ip", "sym", "asm"], ["ip", "bits"]


def listed(trace: Trace, fields: list[str], selection: Selection) -> list[bytes]:
    text = list_instructions(trace, trace.streams, fields, selection, lambda _: None)
    return b"".join(text).splitlines()


@pytest.mark.parametrize("fields", [NATIVE, DETAILED], ids=["native", "detailed"])
@given(first=st.integers(0, 6000), count=st.integers(1, 3000))
def test_index_selects_a_slice_of_the_listing(fields: list[str], first: int, count: int) -> None:
    path, _ = recorded("coroutines.c", "qemu")
    with Trace(path) as trace:
        whole = listed(trace, fields, Selection(head=first + count))
        found = listed(trace, fields, Selection(indexes=(first, first + count)))
        assert found == whole[first : first + count]
        last = listed(trace, fields, Selection(indexes=(first, first + count), tail=5))
        assert last == found[-5:]


@pytest.mark.parametrize("fields", [NATIVE, DETAILED], ids=["native", "detailed"])
def test_index_and_function_select_the_instructions_that_both_select(fields: list[str]) -> None:
    path, _ = recorded("coroutines.c", "qemu")
    with Trace(path) as trace:
        main_call = next(call for call in trace.calls().rows() if call.function == "main")
        indexes = main_call.first, main_call.first + 3000
        within = listed(trace, fields, Selection(indexes=indexes))
        of_main = set(listed(trace, fields, Selection(functions=("main",))))
        both = listed(trace, fields, Selection(indexes=indexes, functions=("main",)))
        assert both == [line for line in within if line in of_main]
        assert 0 < len(both) < len(within)


def test_table_of_instructions_takes_indexes() -> None:
    path, _ = recorded("coroutines.c", "qemu")
    with Trace(path) as trace:
        whole = trace.instructions().columns()["ip"]
        part = trace.instructions(Selection(indexes=(70_000, 70_500))).columns()["ip"]
        assert part.tolist() == whole[70_000:70_500].tolist()
        with pytest.raises(UsageError, match="rows of Branches are no instructions"):
            trace.branches(Selection(indexes=(0, 1)))


def test_durations_print_the_positions_of_calls(capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = recorded("coroutines.c", "qemu")
    assert main(["calls", str(path), "--function", "main", "--durations"]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    index = re.search(r"\d+-\d+", row)
    assert index
    assert main(["instructions", str(path), "--index", index[0], "--fields", "sym"]) == 0
    symbols = capsys.readouterr().out.splitlines()
    assert symbols[0].strip() == "main"
    first, end = map(int, index[0].split("-"))
    assert len(symbols) == end - first


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("5", "expected FIRST-END, END excluded"),
        ("a-b", "expected FIRST-END, END excluded"),
        ("5-5", "selects no instruction"),
        ("0-18446744073709551616", "selects no instruction"),
    ],
)
def test_wrong_positions_are_usage_errors(
    text: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = recorded("coroutines.c", "qemu")
    assert main(["instructions", str(path), "--index", text]) == 2
    assert error in capsys.readouterr().err
