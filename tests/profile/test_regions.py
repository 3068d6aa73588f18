"""Counts of a part of a run equal those in the log of the execution, and callgrind's."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from calls.instrumented import recorded
from programs.build import BARE, CannotBuildError, compiled
from rtit.capture.events import EventFlag, EventKind, ResumeReason
from rtit.cli.main import main
from rtit.errors import UsageError
from rtit.profile.regions import stat_region
from rtit.profile.stat import Region, Stat
from rtit.trace import Trace
from support.callgrind import inclusive_by_function
from support.recordings import RecordedProgram, Recorder, require_backend

ProgramBuilder = Callable[[str], Path]


@pytest.fixture
def live(program: ProgramBuilder, record: Recorder) -> RecordedProgram:
    """The program of these tests, recorded with a log."""
    return record([program("regions")])


def count_region(live: RecordedProgram, region: Region) -> Stat:
    with Trace(live.data) as trace:
        return stat_region(trace, trace.by_thread(always_split=True), region)


def addresses_of_symbols(program: str) -> dict[str, int]:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    rows = subprocess.run([nm, program], capture_output=True, text=True, check=True).stdout
    return {name: int(address, 16) for address, _, name in map(str.split, rows.splitlines())}


@dataclass
class LoggedFrame:
    """A call, or a signal handler if `target` is None, and the instructions of an outermost call
    of the function.
    """

    target: int | None
    is_outermost: bool = False
    instructions: int = 0


@dataclass
class LoggedCounts:
    sizes: list[int] = field(default_factory=list)
    recursive: int = 0
    kinds: Counter[EventKind] = field(default_factory=Counter)
    taken: int = 0


_TRANSFERS = {
    EventKind.CONDITIONAL,
    EventKind.JUMP,
    EventKind.CALL,
    EventKind.INDIRECT_JUMP,
    EventKind.INDIRECT_CALL,
    EventKind.RETURN,
    EventKind.SYSCALL,
}


def calls_in_log(live: RecordedProgram, entry: int) -> LoggedCounts:
    """Follow the calls of the function at `entry`; a signal handler is no part of the call that it
    interrupts.
    """
    found, stack, before = LoggedCounts(), [LoggedFrame(0)], 0
    restore = addresses_of_symbols(live.argv[0])["restore_frame"]

    def frames_of_handler() -> Iterator[LoggedFrame]:
        for frame in reversed(stack):
            yield frame
            if frame.target is None:
                return

    for event in live.log.events():
        running = [each for each in frames_of_handler() if each.is_outermost]
        if running:
            running[0].instructions += event.clock - before
            if event.kind in _TRANSFERS:
                found.kinds[event.kind] += 1
                is_taken = event.flags & EventFlag.CONDITIONAL_TAKEN
                found.taken += bool(event.kind == EventKind.CONDITIONAL and is_taken)
        before = event.clock
        if event.kind in (EventKind.CALL, EventKind.INDIRECT_CALL):
            is_function = event.target == entry
            found.recursive += bool(is_function and running)
            stack.append(LoggedFrame(event.target, is_function and not running))
        elif event.kind == EventKind.RETURN and stack[-1].target is not None:
            if (frame := stack.pop()).is_outermost:
                found.sizes.append(frame.instructions)
        elif event.kind == EventKind.RESUME and event.flags == ResumeReason.HANDLER:
            stack.append(LoggedFrame(None, event.target == entry))
        elif event.kind == EventKind.SYSCALL and restore <= event.ip < restore + 16:
            frame = stack.pop()
            assert frame.target is None
            if frame.is_outermost:
                found.sizes.append(frame.instructions)
    return found


def assert_counts_equal(counts: dict[str, int], logged: LoggedCounts) -> None:
    kinds = logged.kinds
    assert {name: counts[name] for name in list(counts)[:9]} == {
        "instructions": sum(logged.sizes),
        "conditional branches": kinds[EventKind.CONDITIONAL],
        "taken conditional branches": logged.taken,
        "jumps": kinds[EventKind.JUMP] + kinds[EventKind.INDIRECT_JUMP],
        "indirect jumps": kinds[EventKind.INDIRECT_JUMP],
        "calls": kinds[EventKind.CALL] + kinds[EventKind.INDIRECT_CALL],
        "indirect calls": kinds[EventKind.INDIRECT_CALL],
        "returns": kinds[EventKind.RETURN],
        "system calls": kinds[EventKind.SYSCALL],
    }


@pytest.mark.parametrize("name", ["leaf", "work", "ping", "pong", "handler", "main", "say"])
def test_counts_of_a_function_equal_the_log(name: str, live: RecordedProgram) -> None:
    logged = calls_in_log(live, addresses_of_symbols(live.argv[0])[name])
    found = count_region(live, Region(name))
    assert_counts_equal(found.counts, logged)
    assert found.functions.total() == sum(logged.sizes) == found.threads.total()
    sizes = sorted(logged.sizes)
    assert found.counts["calls of the function"] == len(sizes) > 0
    assert found.counts["recursive calls of the function"] == logged.recursive
    assert (logged.recursive > 0) == (name in ("ping", "pong"))
    assert found.counts["least instructions of a call"] == sizes[0]
    assert found.counts["median instructions of a call"] == sizes[(len(sizes) - 1) // 2]
    assert found.counts["most instructions of a call"] == sizes[-1]
    assert (found.losses.has_gaps, found.notes) == (False, ())


def test_function_in_a_signal_handler_is_not_recursive(live: RecordedProgram) -> None:
    """`work` interrupts itself once: the second call is an outermost one."""
    logged = calls_in_log(live, addresses_of_symbols(live.argv[0])["work"])
    assert (len(logged.sizes), logged.recursive) == (6, 0)


def run_callgrind(output: Path, program: str, *options: str) -> str:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("valgrind is not installed")
    command = [valgrind, "--tool=callgrind", f"--callgrind-out-file={output}", *options, program]
    subprocess.run(command, capture_output=True, check=True, timeout=300)
    return output.read_text()


@pytest.mark.parametrize("name", ["leaf", "say"])
def test_counts_of_a_function_equal_what_callgrind_collects_in_it(
    name: str, live: RecordedProgram, tmp_path: Path
) -> None:
    options = ["--branch-sim=yes", f"--toggle-collect={name}"]
    text = run_callgrind(tmp_path / "theirs", live.argv[0], *options)
    totals = re.search(r"^totals: (\d+) ?(\d*)", text, re.M)
    assert totals
    counts = count_region(live, Region(name)).counts
    assert counts["instructions"] == int(totals[1]) > 0
    assert counts["conditional branches"] == int(totals[2] or 0)


@pytest.mark.parametrize("name", ["down", "even"])
def test_recursive_calls_count_once_as_in_callgrind(
    name: str, program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> None:
    live = record([program("recursion")])
    text = run_callgrind(tmp_path / "theirs", live.argv[0], "--dump-instr=yes", "--compress-pos=no")
    entry = addresses_of_symbols(live.argv[0])[name]
    counts = count_region(live, Region(name)).counts
    assert counts["instructions"] == inclusive_by_function(text)[entry] > 0
    assert counts["recursive calls of the function"] > 0


def regions_in_log(live: RecordedProgram, start: int, stop: int) -> tuple[LoggedCounts, int]:
    """Follow the regions from `start` to `stop`, which are targets or sources of branches; return
    also how many begin and do not end.
    """
    found, begin, before = LoggedCounts(), None, 0
    kinds: Counter[EventKind] = Counter()
    taken = 0
    for event in live.log.events():
        if event.kind not in _TRANSFERS:
            continue
        # The branch itself, then its target; the index counts the instructions before each.
        for at, index in ((event.ip, event.clock - 1), (event.target, event.clock)):
            if begin is not None and at == stop:
                found.sizes.append(index - begin)
                found.kinds += kinds
                found.taken += taken
                begin = None
            if begin is None and at == start:
                begin, taken = index, 0
                kinds.clear()
            if at == event.ip:
                kinds[event.kind] += 1
                is_taken = event.flags & EventFlag.CONDITIONAL_TAKEN
                taken += bool(event.kind == EventKind.CONDITIONAL and is_taken)
        before = event.clock
    assert before > 0
    return found, int(begin is not None)


def branch_in(live: RecordedProgram, name: str) -> int:
    """Return the address of the first conditional branch of a function that ran."""
    entry = addresses_of_symbols(live.argv[0])[name]
    return min(
        event.ip
        for event in live.log.events()
        if event.kind == EventKind.CONDITIONAL and event.ip >= entry
    )


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        ("work", "ping"),
        ("leaf", "leaf"),
        ("leaf", "work"),
        ("ping", "pong"),
        ("a branch", "pong"),
        ("leaf", "a branch"),
        ("a branch", "a branch"),
        ("say", "work"),
    ],
)
def test_counts_of_a_region_equal_the_log(start: str, stop: str, live: RecordedProgram) -> None:
    symbols = addresses_of_symbols(live.argv[0])
    symbols["a branch"] = branch_in(live, "ping")
    logged, unfinished = regions_in_log(live, symbols[start], symbols[stop])
    texts = [hex(symbols[each]) if each == "a branch" else each for each in (start, stop)]
    found = count_region(live, Region("", *texts))
    assert_counts_equal(found.counts, logged)
    assert found.functions.total() == sum(logged.sizes)
    assert found.counts["regions"] == len(logged.sizes)
    assert (start == "say") == (not logged.sizes)
    if start != stop:
        assert found.counts["unfinished regions"] == unfinished
    if sizes := sorted(logged.sizes):
        assert found.counts["least instructions of a region"] == sizes[0]
        assert found.counts["median instructions of a region"] == sizes[(len(sizes) - 1) // 2]
        assert found.counts["most instructions of a region"] == sizes[-1]


def test_function_that_was_not_called_has_no_instructions(live: RecordedProgram) -> None:
    counts = count_region(live, Region("never")).counts
    assert set(counts.values()) == {0}
    assert "least instructions of a call" not in counts


def test_unknown_function_is_refused_with_similar_names(live: RecordedProgram) -> None:
    with pytest.raises(UsageError, match=r"--function pingg: .*similar names: ping"):
        count_region(live, Region("pingg"))
    with pytest.raises(UsageError, match=r"--to wrk: .*similar names: work"):
        count_region(live, Region("", "work", "wrk"))


def test_ambiguous_function_is_refused_with_its_addresses(tmp_path: Path, record: Recorder) -> None:
    same = "__attribute__((noipa)) static long same(long n) { return n + %d; }\n"
    part = "long %s(long n); __attribute__((noipa)) long %s(long n) { return same(n); }\n"
    (tmp_path / "one.c").write_text(
        same % 1 + part % ("one", "one") + "long two(long);\n"
        "void _start(void) { long n = one(one(two(1)));\n"
        '__asm__ volatile("syscall" :: "a"(60L), "D"(n - 5)); }\n'
    )
    (tmp_path / "two.c").write_text(same % 2 + part % ("two", "two"))
    sources = [str(tmp_path / name) for name in ("one.c", "two.c")]
    try:
        exe = compiled("same", sources, language="c", flags=["-O1", *BARE])
    except CannotBuildError as error:
        pytest.skip(str(error))
    live = record([exe])
    with pytest.raises(UsageError, match="--function same: 2 functions have this name") as raised:
        count_region(live, Region("same"))
    addresses = re.findall(r"0x[0-9a-f]+", raised.value.hint)
    assert len(addresses) == 2
    calls = [
        count_region(live, Region(address)).counts["calls of the function"] for address in addresses
    ]
    assert sorted(calls) == [1, 2]


def test_calls_during_which_other_stacks_ran_have_no_branches() -> None:
    """The expected instructions are those of the call tree, which its own tests check."""
    path, _ = recorded("coroutines.c", "qemu")
    with Trace(path) as trace:
        by_function = trace.call_tree().by_function()
        functions = {name: totals for (name, _), totals in by_function.items()}
        streams = trace.by_thread(always_split=True)
        visit, work = (stat_region(trace, streams, Region(name)) for name in ("visit", "work"))
    for name, found in (("visit", visit), ("work", work)):
        calls = found.counts["calls of the function"]
        calls += found.counts["recursive calls of the function"]
        assert calls == functions[name].calls
        assert found.counts["instructions"] == functions[name].total_instructions
        assert ("conditional branches" in found.counts) == (name == "work")
    assert visit.counts["recursive calls of the function"] > 0
    assert "other call stacks ran during calls of visit" in visit.notes[0]
    assert not visit.functions
    assert work.functions.total() == work.counts["instructions"]


def test_incomplete_region_is_refused() -> None:
    for names in (("", "a", ""), ("", "", "b"), ("f", "a", "b"), ("", "", "")):
        with pytest.raises(UsageError, match="--from"):
            Region(*names)


def test_program_is_recorded_and_its_region_compared_with_a_baseline(
    program: ProgramBuilder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    require_backend("qemu")
    name, output = str(program("regions")), tmp_path / "counts.json"
    words = ["stat", "--function", "work", "--json", "-o", str(output), "--", name]
    assert main(words) == 0
    assert capfd.readouterr() == ("sum 936\n", "")
    stored = json.loads(output.read_text())
    assert stored["counts"]["calls of the function"] == 6
    against = ["stat", "--function", "work", "--runs", "2", "--baseline", str(output)]
    against += ["--fail-above", "0%", "--", name]
    assert main(against) == 0
    said = capfd.readouterr().err
    assert "all counts are the same in all 2 runs" in said
    assert "+0  instructions since the baseline" in said
    assert main(["stat", "--baseline", str(output), "--", name]) == 2
    assert "has the counts of work, not of the whole run" in capfd.readouterr().err
    stored["counts"]["instructions"] -= 1
    output.write_text(json.dumps(stored))
    assert main(against) == 1


def test_region_of_a_recording_in_every_format(
    live: RecordedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = count_region(live, Region("", "work", "ping")).counts
    words = ["stat", "-i", str(live.data), "--from", "work", "--to", "ping"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == counts
    assert main(words) == 0
    text = capsys.readouterr().out
    assert main([*words, "--format", "markdown"]) == 0
    markdown = capsys.readouterr().out
    for name, count in counts.items():
        assert re.search(rf"^ *{count:,} +{name}$", text, re.M)
        assert re.search(rf"^\| (- )?{name} \| {count:,} \|$", markdown, re.M)
    assert main([*words, "--format", "github-benchmark"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["value"]) for row in rows] == [
        (f"{live.data}: work to ping: {name}", count) for name, count in counts.items()
    ]
    units = {row["name"].rpartition(": ")[2]: row["unit"] for row in rows}
    assert units["regions"] == "regions"
    assert units["least instructions of a region"] == "instructions"
