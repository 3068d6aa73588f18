"""`profile` and `diff` report calls beyond the limits of calling contexts and counters."""

from __future__ import annotations

from pathlib import Path

from rtit import Trace
from rtit.diff.diff_traces import diff_traces
from rtit.diff.difference import difference_json, format_difference
from rtit.profile.builder import build_profile
from rtit.profile.calls import follow_calls
from support.oversized import write_oversized


def test_calls_too_deep_for_contexts_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    short, deep = write_oversized(folder, "calls", 1000), write_oversized(tmp_path, "calls", 80_000)
    with Trace(short) as one, Trace(deep) as other:
        (stream,) = other.select()
        found = build_profile(other, [stream])
        _, columns = follow_calls(other, stream, found)
        # each instruction is a call, nested in all calls before it
        count = found.instructions
        assert sum(columns["own"]) == count
        beyond = count - len(columns["own"])
        assert found.losses.deep_calls == beyond > 0
        sentence = f"{beyond:,} calls are too deep or in too many contexts"
        assert any(line.startswith(sentence) for line in found.losses.describe_losses())
        difference = diff_traces(one, other)
        assert not difference.has_equal_paths
        assert not difference.gaps
        (warning,) = difference.too_deep
        assert warning.startswith(f"second: {sentence}")
        assert warning in format_difference(difference)
        assert difference_json(difference)["too_deep"] == [warning]
        assert not diff_traces(one, one).too_deep


def test_calls_beyond_the_pair_limit_are_reported(tmp_path: Path) -> None:
    path = write_oversized(tmp_path, "calls", 1000)

    def calls(max_counters: int) -> tuple[list[int], int, list[str]]:
        with Trace(path, max_counters=max_counters) as trace:
            (stream,) = trace.select()
            found = build_profile(trace, [stream])
            _, columns = follow_calls(trace, stream, found)
            return list(columns["calls"]), sum(columns["own"]), found.losses.describe_call_losses()

    whole, ran, warnings = calls(0)
    assert warnings == []
    assert len(whole) > 50
    few, as_many, (told_of,) = calls(100)
    assert few == whole[:50]
    beyond = f"{sum(whole[50:]):,} calls are between more than 50 pairs of caller and callee: "
    assert told_of.startswith(beyond)
    assert "--max-edges" in told_of
    assert as_many == ran


def test_counters_beyond_the_limit_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    short, long = (
        write_oversized(folder, "targets", 1000),
        write_oversized(tmp_path, "targets", 80_000),
    )
    with Trace(short) as one, Trace(long) as other:
        assert not diff_traces(one, other).gaps
    with Trace(short, max_counters=10) as one, Trace(long, max_counters=10) as other:
        gaps = diff_traces(one, other).gaps
    assert [line.split(":")[0] for line in gaps] == ["first", "first", "second", "second"]
    assert all("beyond --max-edges" in line for line in gaps)
