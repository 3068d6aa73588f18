"""Files for speedscope keep its format, `FileFormat` in its `src/lib/file-format-spec.ts`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from calls.instrumented import recorded
from rtit.cli.main import main
from rtit.trace import Trace
from rtit.views.call_tree import FunctionNode
from rtit.views.speedscope import speedscope_json
from views.test_timeline import Slice, expected_slices
from views.test_uftrace import NamePath, logged_paths, names_of_logged_functions

FILE_KEYS = {"$schema", "shared", "profiles", "name", "exporter", "activeProfileIndex"}
PROFILE_KEYS = {"type", "name", "unit", "startValue", "endValue", "events"}


def check_format(value: dict[str, Any], unit: str = "none") -> None:
    assert value.keys() == FILE_KEYS
    assert value["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert value["activeProfileIndex"] in range(len(value["profiles"]))
    assert all(each.keys() == {"name"} for each in value["shared"]["frames"])
    for profile in value["profiles"]:
        assert profile.keys() == PROFILE_KEYS
        assert (profile["type"], profile["unit"]) == ("evented", unit)
        times = [each["at"] for each in profile["events"]]
        times = [profile["startValue"], *times, profile["endValue"]]
        assert times == sorted(times)
        sum_stacks(value, profile)


def sum_stacks(value: dict[str, Any], profile: dict[str, Any]) -> dict[str, int]:
    """Return the weight of each stack of a profile, as a reader of the file adds them up."""
    names = [frame["name"] for frame in value["shared"]["frames"]]
    weights: Counter[str] = Counter()
    stack: list[int] = []
    last = profile["startValue"]
    for event in profile["events"]:
        assert event.keys() == {"type", "frame", "at"}
        if event["at"] > last:
            weights[";".join(names[each] for each in stack)] += event["at"] - last
        last = event["at"]
        if event["type"] == "O":
            stack.append(event["frame"])
        else:
            assert event["type"] == "C"
            assert stack.pop() == event["frame"]
    assert not stack
    assert last == profile["endValue"]
    return dict(weights)


def test_profiles_have_the_instructions_of_each_stack() -> None:
    first, second = FunctionNode("thread 7"), FunctionNode("thread 8")
    main = first.child("main")
    main.add(1, 10, 25)
    main.child("work").add(2, 15, 15)
    second.child("work").add(1, 3, 3)
    value = speedscope_json({"thread 7": first, "thread 8": second}, "ls -l")
    check_format(value)
    assert value["name"] == "ls -l"
    assert [each["name"] for each in value["profiles"]] == ["thread 7", "thread 8"]
    assert [sum_stacks(value, each) for each in value["profiles"]] == [
        {"main": 10, "main;work": 15},
        {"work": 3},
    ]


def test_file_grows_with_the_depth_of_a_recursion_not_with_its_square() -> None:
    root = node = FunctionNode("")
    for _ in range(10_000):
        node = node.child("down")
        node.add(1, 1, 0)
    value = speedscope_json({"thread 7": root}, "")
    assert value["shared"]["frames"] == [{"name": "down"}]
    assert len(value["profiles"][0]["events"]) == 20_000


def write_timeline(source: str, folder: Path, *options: str) -> dict[str, Any]:
    path, _ = recorded(source, "qemu")
    file = folder / "calls.json"
    words = ["timeline", str(path), "--for", "speedscope", "-o", str(file), *options]
    assert main(words) == 0
    value = json.loads(file.read_bytes())
    assert isinstance(value, dict)
    return value


def opened_paths(value: dict[str, Any], profile: dict[str, Any]) -> list[NamePath]:
    """Return the stack after each opened frame of a profile."""
    names = [frame["name"] for frame in value["shared"]["frames"]]
    stack: list[str] = []
    found: list[NamePath] = []
    for event in profile["events"]:
        if event["type"] == "O":
            stack.append(names[event["frame"]])
            found.append(tuple(stack))
        else:
            stack.pop()
    return found


@pytest.mark.parametrize("source", ["threads.c", "unwinding.c"])
def test_timeline_has_the_logged_calls_of_each_thread_in_order(source: str, tmp_path: Path) -> None:
    path, log = recorded(source, "qemu")
    expected = logged_paths(log, names_of_logged_functions(path, log))
    names = {path[-1] for each in expected.values() for path in each}
    value = write_timeline(source, tmp_path)
    check_format(value)
    found = [
        [
            tuple(name for name in stack if name in names)
            for stack in opened_paths(value, profile)
            if stack[-1] in names
        ]
        for profile in value["profiles"]
    ]
    assert sorted(found) == sorted(expected.values())
    with Trace(path) as trace:
        titles = {stream.title for stream in trace.threads}
    assert {profile["name"] for profile in value["profiles"]} == titles


def test_timeline_of_coroutines_has_all_calls(tmp_path: Path) -> None:
    value = write_timeline("coroutines.c", tmp_path)
    check_format(value)
    names = [frame["name"] for frame in value["shared"]["frames"]]
    found: Counter[Slice] = Counter()
    for profile in value["profiles"]:
        begins = []
        for event in profile["events"]:
            if event["type"] == "O":
                begins.append(event["at"])
            else:
                found[names[event["frame"]], begins.pop(), event["at"]] += 1
    path, _ = recorded("coroutines.c", "qemu")
    with Trace(path) as trace:
        assert found == expected_slices(trace)


def test_timeline_by_time_has_nanoseconds(tmp_path: Path) -> None:
    value = write_timeline("threads.c", tmp_path, "--axis", "time")
    check_format(value, "nanoseconds")
    by_instruction = write_timeline("threads.c", tmp_path)
    assert [len(each["events"]) for each in value["profiles"]] == [
        len(each["events"]) for each in by_instruction["profiles"]
    ]


def test_timeline_says_which_calls_are_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = write_timeline("unwinding.c", tmp_path, "--max-calls", "10")
    note = capsys.readouterr().err.removeprefix("rtit timeline: ").strip()
    assert value["name"].endswith(f" ({note})")
    [profile] = value["profiles"]
    assert len(profile["events"]) == 20
