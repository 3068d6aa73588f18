"""pprof profiles: lines and inlined functions of each location, counts of each line in each
context.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from programs.build import SOURCES
from rtit.profile.builder import build_profile
from rtit.trace import Trace
from support.profiles import ProfiledProgram, ToolRunner

Frames = tuple[tuple[str, str, int], ...]
"""Function, file and line; the innermost first."""


class PprofProfile(NamedTuple):
    """What `go tool pprof -raw` prints."""

    sample_types: list[str]
    samples: list[tuple[list[int], list[int]]]
    """Values, and locations from the innermost."""
    addresses: dict[int, int]
    frames: dict[int, Frames]


def read_raw(text: str) -> PprofProfile:
    lines = iter(text.splitlines())
    found = PprofProfile([], [], {}, defaultdict(tuple))
    for line in lines:
        if line.startswith("Samples:"):
            found.sample_types.extend(next(lines).split())
        elif match := re.match(r"((?: +\d+)+): ((?:\d+ )+)$", line):
            values, stack = ([int(each) for each in words.split()] for words in match.groups())
            found.samples.append((values, stack))
        elif match := re.match(r" +(\d+): (0x[0-9a-f]+) M=\d+ ?(.*)", line):
            number = int(match[1])
            found.addresses[number] = int(match[2], 16)
        if match := re.search(r"(\S+) (\S+):(\d+)(?::\d+)? s=\d+$", line):
            found.frames[number] += ((match[1], match[2], int(match[3])),)
    return found


def read_profile(inlined: ProfiledProgram, run_tool: ToolRunner) -> PprofProfile:
    return read_raw(run_tool("go", "tool", "pprof", "-raw", inlined.written("pprof")))


def function_of(frames: Frames) -> str:
    """Return the function that is not inlined."""
    return frames[-1][0] if frames else ""


def symbolize(program: Path, addresses: list[int], run_tool: ToolRunner) -> list[Frames]:
    """Return the frames of addresses as llvm-symbolizer finds them."""
    words = ["--output-style=LLVM", "--inlines", f"--obj={program}", *map(hex, addresses)]
    found: list[Frames] = []
    for block in run_tool("llvm-symbolizer", *words).rstrip().split("\n\n"):
        lines = block.splitlines()
        frames = []
        for name, place in zip(lines[::2], lines[1::2], strict=True):
            path, line, _column = place.rsplit(":", 2)
            frames.append((name, path, int(line)))
        found.append(tuple(frames))
    return found


def test_frames_equal_llvm_symbolizer(inlined: ProfiledProgram, run_tool: ToolRunner) -> None:
    found = read_profile(inlined, run_tool)
    ours = {
        address: found.frames[number]
        for number, address in found.addresses.items()
        if any("inlined." in path for _, path, _ in found.frames[number])
    }
    assert {len(frames) for frames in ours.values()} == {1, 2, 3}
    theirs = symbolize(inlined.program, list(ours), run_tool)
    assert list(ours.values()) == theirs
    assert {Path(path).name for frames in theirs for _, path, _ in frames} == {
        "inlined.c",
        "inlined.h",
    }


def test_lines_have_the_counts_of_their_instructions(
    inlined: ProfiledProgram, run_tool: ToolRunner
) -> None:
    """The frames of each instruction are those of llvm-symbolizer."""
    found = read_profile(inlined, run_tool)
    by_frames: Counter[Frames] = Counter()
    for (instructions, _), (innermost, *_) in found.samples:
        by_frames[found.frames[innermost]] += instructions
    with Trace(inlined.data) as trace:
        main = build_profile(trace, trace.streams).main
    assert main is not None
    addresses = main.symbols.addresses(main.offset).tolist()
    expected: Counter[Frames] = Counter()
    for frames, count in zip(
        symbolize(inlined.program, addresses, run_tool), main.count.tolist(), strict=True
    ):
        expected[frames] += count
    names = {"external", "repeat", "rarely", "often", "main"}
    ours = {frames: count for frames, count in by_frames.items() if function_of(frames) in names}
    assert ours == {
        frames: count for frames, count in expected.items() if function_of(frames) in names
    }
    assert len(ours) > 10


def test_contexts_have_lines_of_their_own(inlined: ProfiledProgram, run_tool: ToolRunner) -> None:
    """repeat loops 10 times for one caller and 1,000 times for the other."""
    found = read_profile(inlined, run_tool)
    of_callers: dict[str, Counter[int]] = {"rarely": Counter(), "often": Counter()}
    for (instructions, _), (innermost, *stack) in found.samples:
        frames = found.frames[innermost]
        if function_of(frames) == "repeat":
            of_callers[function_of(found.frames[stack[0]])][frames[-1][2]] += instructions
    text = (SOURCES / "inlined.c").read_text().splitlines()
    (line,) = (number for number, each in enumerate(text, 1) if "four_times" in each)
    assert of_callers["rarely"][line] > 0
    assert of_callers["often"][line] == 100 * of_callers["rarely"][line]
    (line,) = (number for number, each in enumerate(text, 1) if "int repeat" in each)
    assert of_callers["often"][line] == of_callers["rarely"][line] > 0


def test_sample_types_suit_pprof_and_go(inlined: ProfiledProgram, run_tool: ToolRunner) -> None:
    """Go's compiler reads samples/count (go.dev/doc/pgo)."""
    found = read_profile(inlined, run_tool)
    assert found.sample_types == ["instructions/count[dflt]", "samples/count"]
    assert all(first == second for (first, second), _ in found.samples)
