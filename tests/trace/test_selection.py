"""Selection options, and their conversion to TSC ticks."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.cli.options import (
    add_code_selection_options,
    add_head_and_tail_options,
    add_stream_options,
    parse_selection,
)
from rtit.errors import UsageError
from rtit.perfdata import TimeConversion
from rtit.trace import Selection, TimeRange
from rtit.trace.tables.selection import LATEST, parse_range, parse_times
from support.streams import make_stream

HALF = TimeConversion(shift=1, mult=1, zero=100)
"""A TSC of 2 GHz that is 0 at 100 ns of the perf clock."""


def options(*words: str) -> Selection:
    parser = argparse.ArgumentParser(exit_on_error=False)
    group = add_stream_options(parser)
    add_code_selection_options(group)
    add_head_and_tail_options(group)
    return parse_selection(parser.parse_args(words))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5,17", TimeRange(5, 17)),
        ("5,", TimeRange(5)),
        (",17", TimeRange(None, 17)),
        (",", TimeRange()),
        # perf prints seconds with six or nine decimal digits
        ("1.5,", TimeRange(1_500_000_000, seconds=True)),
        ("12.345678, 12.345678901", TimeRange(12_345_678_000, 12_345_678_901, seconds=True)),
        ("7,7", TimeRange(7, 7)),
    ],
)
def test_times_parse_as_in_perf(text: str, expected: TimeRange) -> None:
    assert parse_times(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "5", "1,2,3", "a,", "0x10,", "1.,", ".5,", "1.1234567891,", "9,8", "-1,", "²,",
     f"{1 << 64},", "9" * 5000 + ","],
)  # fmt: skip
def test_invalid_time_raises_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--time"):
        parse_times(text)


def test_times_convert_to_ticks() -> None:
    # 100 ns is ticks 0 and 1, 101 ns is ticks 2 and 3.
    assert TimeRange(100, 100).to_ticks(HALF) == (0, 1)
    assert TimeRange(101, 102).to_ticks(HALF) == (2, 5)
    assert TimeRange(0, 101).to_ticks(HALF) == (0, 3)
    assert TimeRange(101).to_ticks(HALF) == (2, LATEST)
    assert TimeRange().to_ticks(HALF) == (0, LATEST)
    first, last = TimeRange(0, 99).to_ticks(HALF)
    assert first > last


def test_times_are_ticks_without_a_clock() -> None:
    assert TimeRange(5, 17).to_ticks(None) == (5, 17)
    assert TimeRange(None, 17).to_ticks(None) == (0, 17)
    with pytest.raises(UsageError, match="ticks"):
        parse_times("1.5,").to_ticks(None)


@given(
    st.integers(0, 40),
    st.integers(1, (1 << 32) - 1),
    st.integers(-(1 << 62), 1 << 62),
    st.integers(0, 1 << 62),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 63),
)
def test_tick_is_selected_if_its_nanosecond_is(
    shift: int, mult: int, zero: int, start: int, length: int, any_tick: int
) -> None:
    """`to_nanoseconds` is within the bounds exactly for the selected ticks."""
    clock = TimeConversion(shift, mult, zero % (1 << 64))
    first, last = TimeRange(start, start + length).to_ticks(clock)

    def within(tick: int) -> bool:
        # The conversion wraps: compare without the wrap.
        return start <= zero + (tick * mult >> shift) <= start + length

    for tick in (any_tick, first - 1, first, last, last + 1, 0, LATEST):
        if 0 <= tick <= LATEST:
            assert (first <= tick <= last) == within(tick), tick


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000-1010", (0x1000, 0x1010)),
        ("0x7fFF-0X8000", (0x7FFF, 0x8000)),
        ("0-ffffffffffffffff", (0, LATEST)),
    ],
)
def test_address_range_text_is_parsed(text: str, expected: tuple[int, int]) -> None:
    assert parse_range(text) == expected


@pytest.mark.parametrize(
    "text", ["", "1000", "1000-1000", "2-1", "-1", "1-", "1-2-3", "main-2", "1-" + "f" * 17]
)
def test_invalid_range_raises_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--range"):
        parse_range(text)


def test_options_select_rows() -> None:
    assert options() == Selection()
    found = options("--tid", "1,2", "--tid", "3", "--pid", "1", "--cpu", "0", "--comm", "ls,cc1",
                    "--time", "5,", "--range", "10-20", "--function", "main", "--function",
                    "operator,@x", "--head", "10")  # fmt: skip
    assert found == Selection(
        tids=(1, 2, 3),
        pids=(1,),
        cpus=(0,),
        comms=("ls", "cc1"),
        time=TimeRange(5),
        ranges=((0x10, 0x20),),
        functions=("main", "operator,@x"),
        head=10,
    )
    assert options("--tail", "0") == Selection(tail=0)


@pytest.mark.parametrize(
    "words",
    [
        ["--tid", "ls"],
        ["--tid", ""],
        ["--pid", "1,"],
        ["--cpu", "-1"],
        ["--tid", "9" * 5000],
        ["--comm", "a,,b"],
        ["--function", ""],
        ["--head", "1", "--tail", "1"],
    ],
)
def test_invalid_options_raise_usage_error(words: list[str]) -> None:
    with pytest.raises(UsageError, match=words[0]):
        options(*words)


@pytest.mark.parametrize("word", ["-1", "1.5", "9" * 19, ""])
def test_invalid_count_raises_usage_error(word: str) -> None:
    with pytest.raises(argparse.ArgumentError, match="expected a whole number"):
        options(f"--head={word}")


def test_options_select_streams() -> None:
    plain = make_stream(b"", {})
    one, two = (replace(plain, tid=tid, pid=1, name=name) for tid, name in ((1, "sh"), (2, "ls")))
    three = replace(plain, tid=3, pid=3, name=None, cpu=0)
    every = [one, two, three]
    assert Selection().select_streams(every) == every
    assert Selection().select_streams([]) == []
    assert Selection(tids=(2, 3)).select_streams(every) == [two, three]
    assert Selection(pids=(1,)).select_streams(every) == [one, two]
    assert Selection(cpus=(0,)).select_streams(every) == [three]
    assert Selection(comms=("ls",), pids=(1,)).select_streams(every) == [two]
    with pytest.raises(UsageError, match=r"thread 1 \(sh\), thread 2 \(ls\), cpu 0, thread 3"):
        Selection(tids=(1,), comms=("ls",)).select_streams(every)


@pytest.mark.parametrize(
    "fields",
    [{"comms": "worker"}, {"functions": "main"}, {"tids": 7}, {"time": (0, 10)}, {"head": -1}],
)
def test_field_of_another_type_raises_usage_error(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(fields))):
        Selection(**fields)
