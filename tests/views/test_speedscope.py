"""Files for speedscope keep its format, `FileFormat` in its `src/lib/file-format-spec.ts`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rtit.views.call_tree import FunctionNode
from rtit.views.speedscope import speedscope_json

FILE_KEYS = {"$schema", "shared", "profiles", "name", "exporter", "activeProfileIndex"}
PROFILE_KEYS = {"type", "name", "unit", "startValue", "endValue", "events"}


def check_format(value: dict[str, Any]) -> None:
    assert value.keys() == FILE_KEYS
    assert value["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert value["activeProfileIndex"] in range(len(value["profiles"]))
    assert all(each.keys() == {"name"} for each in value["shared"]["frames"])
    for profile in value["profiles"]:
        assert profile.keys() == PROFILE_KEYS
        assert (profile["type"], profile["unit"]) == ("evented", "none")
        times = [each["at"] for each in profile["events"]]
        assert [0, *times, profile["endValue"]] == sorted([0, *times, profile["endValue"]])
        sum_stacks(value, profile)


def sum_stacks(value: dict[str, Any], profile: dict[str, Any]) -> dict[str, int]:
    """Return the weight of each stack of a profile, as a reader of the file adds them up."""
    names = [frame["name"] for frame in value["shared"]["frames"]]
    weights: Counter[str] = Counter()
    stack: list[int] = []
    last = 0
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
