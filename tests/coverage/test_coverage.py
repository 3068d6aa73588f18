"""Coverage has the lines that ran by the source. Each format is read by its own definition, or by
the tool that it is for.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import get_type_hints
from xml.etree import ElementTree as ET

import pytest

from programs.build import SOURCES
from rtit.cli.main import main
from rtit.coverage import Coverage, SourceFile, coverage, source_files
from rtit.coverage.file_coverage import FileCoverage
from rtit.coverage.formats.blocks import SIZE
from rtit.trace import Trace
from support.profiles import ProfiledProgram, ToolRunner
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]
SOURCE = SOURCES / "profiled.c"
COUNT = 300


def test_file_coverage_annotations_resolve() -> None:
    hints = get_type_hints(FileCoverage)
    assert hints.keys() == {field.name for field in dataclasses.fields(FileCoverage)}
    assert hints["build_id"] == bytes | None
    assert get_type_hints(FileCoverage.read_code)["return"] is bytes


def line_of(text: str) -> int:
    [number] = [n for n, each in enumerate(SOURCE.read_text().splitlines(), 1) if text in each]
    return number


def sorted_by_hand() -> tuple[int, int]:
    """Return comparisons and exchanges of bubble, by its source."""
    seed, numbers = 1, []
    for _ in range(COUNT):
        seed = (seed * 1103515245 + 12345) % (1 << 32)
        numbers.append(seed >> 8)
    comparisons = exchanges = 0
    for i in range(COUNT):
        for j in range(COUNT - i - 1):
            comparisons += 1
            if numbers[j] > numbers[j + 1]:
                exchanges += 1
                numbers[j], numbers[j + 1] = numbers[j + 1], numbers[j]
    return comparisons, exchanges


def compute_coverage(path: Path) -> Coverage:
    with Trace(path) as trace:
        return coverage([(trace, trace.streams)])


def of_program(profiled: ProfiledProgram) -> SourceFile:
    found = compute_coverage(profiled.data)
    found.files = [each for each in found.files if each.path == str(profiled.program)]
    [source] = source_files(found)
    return source


def write_coverage(data: Path, folder: Path, kind: str, *options: str) -> Path:
    output = folder / f"coverage.{kind}"
    words = ["coverage", str(data), "--format", kind, "-o", str(output), *options]
    assert main(words) == 0
    return output


def test_line_and_branch_counts_follow_from_source(profiled: ProfiledProgram) -> None:
    source = of_program(profiled)
    comparisons, exchanges = sorted_by_hand()
    assert source.lines[line_of("if (all[j] > all[j + 1])")] == comparisons
    assert source.lines[line_of("all[j] = all[j + 1];")] == exchanges
    ways = {
        (each.taken, each.not_taken)
        for each in source.branches
        if each.line == line_of("if (all[j] > all[j + 1])")
    }
    assert ways & {(exchanges, comparisons - exchanges), (comparisons - exchanges, exchanges)}
    counts = {each.name: each.count for each in source.functions}
    assert counts == {"compare": counts["compare"], "bubble": 1, "fibonacci": 287, "fill": 2,
                      "main": 1}  # fmt: skip
    assert counts["compare"] > COUNT


def test_lcov_is_read_by_genhtml(
    profiled: ProfiledProgram, run_tool: ToolRunner, tmp_path: Path
) -> None:
    info = write_coverage(profiled.data, tmp_path, "lcov")
    source = of_program(profiled)
    # By the definition: line, block, branch (here 0: taken), how often.
    rows = re.findall(r"^BRDA:(\d+),(\d+),(\d+),(\d+)$", info.read_text(), re.MULTILINE)
    found = {(int(line), int(block), int(way)): int(count) for line, block, way, count in rows}
    expected: dict[tuple[int, int, int], int] = {}
    for line in {each.line for each in source.branches}:
        here = [each for each in source.branches if each.line == line]
        for block, each in enumerate(here):
            expected |= {(line, block, 0): each.taken, (line, block, 1): each.not_taken}
    assert found == expected
    said = run_tool("genhtml", "--branch-coverage", "-o", tmp_path / "html", info)
    lines = re.search(r"lines\.+: \S+ \((\d+) of (\d+) lines\)", said)
    functions = re.search(r"functions\.+: \S+ \((\d+) of (\d+) functions\)", said)
    branches = re.search(r"branches\.+: \S+ \((\d+) of (\d+) branches\)", said)
    assert lines is not None
    assert functions is not None
    assert branches is not None
    assert (int(lines[1]), int(lines[2])) == (source.lines_hit, len(source.lines))
    assert (int(functions[1]), int(functions[2])) == (5, 5)
    assert (int(branches[1]), int(branches[2])) == (source.outcomes_hit, 2 * len(source.branches))


def test_cobertura_has_counts_of_source(profiled: ProfiledProgram, tmp_path: Path) -> None:
    document = ET.fromstring(write_coverage(profiled.data, tmp_path, "cobertura").read_text())
    assert document.tag == "coverage"
    [found] = [each for each in document.iter("class") if each.attrib["name"] == "profiled.c"]
    all_lines = found.find("lines")
    assert all_lines is not None
    hits = {int(each.attrib["number"]): int(each.attrib["hits"]) for each in all_lines}
    comparisons, exchanges = sorted_by_hand()
    assert hits[line_of("if (all[j] > all[j + 1])")] == comparisons
    assert hits[line_of("all[j] = all[j + 1];")] == exchanges
    lines = [each for each in all_lines if each.attrib["branch"] == "true"]
    assert lines
    for each in lines:
        share = re.fullmatch(r"(\d+)% \((\d+)/(\d+)\)", each.attrib["condition-coverage"])
        assert share is not None
        assert int(share[1]) == 100 * int(share[2]) // int(share[3])


def test_html_marks_lines(profiled: ProfiledProgram, tmp_path: Path) -> None:
    class Page(HTMLParser):
        """Collects the text of the highlighted lines by class, and checks that elements are
        closed.
        """

        def __init__(self) -> None:
            super().__init__()
            self.marked: dict[str, list[str]] = {}
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag == "span":
                self.open.append(str(dict(attrs)["class"]))
                self.marked.setdefault(self.open[-1], []).append("")

        def handle_endtag(self, tag: str) -> None:
            if tag == "span":
                self.open.pop()

        def handle_data(self, data: str) -> None:
            if self.open:
                self.marked[self.open[-1]][-1] += data

    text_of_page = write_coverage(profiled.data, tmp_path, "html").read_text()
    legend = text_of_page.partition("<pre ")[0].rpartition("</table>")[2]
    assert re.findall(r'class="(\w+)">([\w ]+),?', legend) == [
        ("ran", "executed"), ("part", "executed"), ("not", "not executed")
    ]  # fmt: skip
    page = Page()
    page.feed(text_of_page)
    assert not page.open
    source = of_program(profiled)
    rows = {int(text.split()[0]): text for lines in page.marked.values() for text in lines}
    assert rows.keys() == source.lines.keys()
    text = SOURCE.read_text().splitlines()
    for number, row in rows.items():
        assert int(row.split()[1].replace(",", "")) == source.lines[number]
        assert row.endswith(text[number - 1])
    halves = {
        each.line for each in source.branches if source.lines[each.line]
        and not (each.taken and each.not_taken)
    }  # fmt: skip
    assert {int(each.split()[0]) for each in page.marked.get("part", [])} == halves


def test_drcov_blocks_cover_executed_bytes(profiled: ProfiledProgram, tmp_path: Path) -> None:
    """The blocks, parsed by the definition of the format, are the bytes that ran."""
    data = write_coverage(profiled.data, tmp_path, "drcov", "--dso", "all").read_bytes()
    head, _, table = data.partition(b" bbs\n")
    lines = head.decode().splitlines()
    assert lines[:2] == ["DRCOV VERSION: 2", "DRCOV FLAVOR: rtit"]
    count = int(lines[2].rpartition(" ")[2])
    modules = [line.split(", ") for line in lines[4 : 4 + count]]
    assert len(lines) == 5 + count
    assert len(table) == 8 * int(lines[-1].rpartition(" ")[2])
    ran: dict[int, set[int]] = {}
    for start, size, number in struct.iter_unpack("<IHH", table):
        ran.setdefault(number, set()).update(range(start, start + size))
    for code in compute_coverage(profiled.data).files:
        [number] = [int(row[0]) for row in modules if row[-1] == code.path]
        low = int(modules[number][1], 16)
        expected = {
            code.symbols.address(offset) - low + byte
            for offset, size in zip(code.offset.tolist(), code.length.tolist(), strict=True)
            for byte in range(size)
        }
        assert ran[number] == expected


def test_drcov_is_read_by_drcov_crate(
    profiled: ProfiledProgram, run_tool: ToolRunner, tmp_path: Path
) -> None:
    """`drcov-read` is in the crate drcov, with its feature cli."""
    path = write_coverage(profiled.data, tmp_path, "drcov", "--dso", "all")
    said = run_tool("drcov-read", path)
    text = path.read_bytes().partition(b"BB Table: ")
    assert f"Total Basic Blocks: {int(text[2].split()[0])}\n" in said
    modules = text[0].count(b"\n") - 4
    assert f"Total Modules: {modules}\n" in said
    assert str(profiled.program) in said


def test_afl_map_has_executed_edges(profiled: ProfiledProgram, tmp_path: Path) -> None:
    found = write_coverage(profiled.data, tmp_path, "afl").read_bytes()
    assert len(found) == SIZE
    edges = sum(
        len(code.source)
        for code in compute_coverage(profiled.data).files
        if code.path == str(profiled.program)
    )
    assert edges * 0.9 <= sum(map(bool, found)) <= edges
    assert max(found) == 255  # the loop's counters have stopped
    assert write_coverage(profiled.data, tmp_path, "afl").read_bytes() == found


def test_recordings_are_added_and_subtracted(
    program: ProgramBuilder, record: Recorder, profiled: ProfiledProgram, tmp_path: Path
) -> None:
    one, other = record([program("recursion")]).data, record([program("pointers")]).data
    words = ["coverage", str(one), str(one), "--format", "lcov", "-o", str(tmp_path / "twice")]
    assert main(words) == 0
    once = write_coverage(one, tmp_path, "lcov").read_text().splitlines()
    twice = (tmp_path / "twice").read_text().splitlines()
    assert len(once) == len(twice)
    for line, double in zip(once, twice, strict=True):
        if line.startswith("DA:"):
            number, _, count = line.partition(",")
            assert double == f"{number},{2 * int(count)}"
    nothing = write_coverage(one, tmp_path, "lcov", "--diff-from", str(one)).read_text()
    assert "LH:0" in nothing
    assert not re.search(r"^LH:[1-9]", nothing, re.MULTILINE)
    assert (
        write_coverage(one, tmp_path, "lcov", "--diff-from", str(other)).read_text().splitlines()
        == once
    )


def test_program_without_dwarf_has_no_lines(
    record: Recorder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = record(["/bin/echo", "hello"]).data
    assert main(["coverage", str(data)]) == 0
    said = capsys.readouterr().out
    assert "echo has no debug information: compile with -g" in said
    assert re.search(r"^ +[\d,]+ +[\d,]+ +[\d,]+  \S*/echo$", said, re.MULTILINE)
