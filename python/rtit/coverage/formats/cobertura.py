"""Cobertura's XML (coverage-04.dtd), with a package per folder and a class per file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from rtit.text_escaping import escape_control_characters

if TYPE_CHECKING:
    from rtit.coverage.source_coverage import SourceFile


def cobertura_report(sources: Sequence[SourceFile], version: str) -> Iterator[str]:
    """Return the lines of the document."""
    yield '<?xml version="1.0" ?>'
    yield "<!DOCTYPE coverage SYSTEM 'http://cobertura.sourceforge.net/xml/coverage-04.dtd'>"
    totals = {
        "lines-covered": str(sum(each.lines_hit for each in sources)),
        "lines-valid": str(sum(each.line_count for each in sources)),
        "branches-covered": str(sum(each.outcomes_hit for each in sources)),
        "branches-valid": str(sum(each.outcome_count for each in sources)),
        "complexity": "0",
        "timestamp": "0",
        "version": version,
    }
    folders: dict[str, list[SourceFile]] = defaultdict(list)
    for source in sources:
        folders[str(PurePath(source.path).parent)].append(source)
    within = _xml_element(1, "sources", {}, iter(["    <source>/</source>"]))
    packages = _xml_element(1, "packages", {}, _package_elements(folders.items()))
    yield from _xml_element(
        0, "coverage", _coverage_rates(sources) | totals, chain(within, packages)
    )


def _package_elements(folders: Iterable[tuple[str, list[SourceFile]]]) -> Iterator[str]:
    for folder, files in folders:
        name = {"name": escape_control_characters(folder), "complexity": "0"}
        classes = _xml_element(3, "classes", {}, chain.from_iterable(map(_class_element, files)))
        yield from _xml_element(2, "package", name | _coverage_rates(files), classes)


def _class_element(source: SourceFile) -> Iterator[str]:
    path = escape_control_characters(source.path)
    attributes = {"name": PurePath(path).name, "filename": path.lstrip("/"), "complexity": "0"}
    methods = _xml_element(5, "methods", {}, _method_elements(source))
    lines = _xml_element(5, "lines", {}, _line_elements(source))
    yield from _xml_element(
        4, "class", attributes | _coverage_rates([source]), chain(methods, lines)
    )


def _method_elements(source: SourceFile) -> Iterator[str]:
    for function in source.functions:
        rate = {"line-rate": str(float(function.count > 0)), "branch-rate": "0"}
        names = {
            "name": escape_control_characters(function.name),
            "signature": "()",
            "complexity": "0",
        }
        line = {"number": str(function.line), "hits": str(function.count)}
        lines = _xml_element(7, "lines", {}, _xml_element(8, "line", line))
        yield from _xml_element(6, "method", names | rate, lines)


def _line_elements(source: SourceFile) -> Iterator[str]:
    for line, count, branches in source.iterate_lines_with_branches():
        if not branches:
            yield f'            <line number="{line}" hits="{count}" branch="false" />'
            continue
        hit = sum((each.taken > 0) + (each.not_taken > 0) for each in branches)
        total = 2 * len(branches)
        row = {"number": str(line), "hits": str(count), "branch": "true"}
        row["condition-coverage"] = f"{100 * hit // total}% ({hit}/{total})"
        yield from _xml_element(6, "line", row)


def _xml_element(
    level: int, tag: str, attributes: dict[str, str], within: Iterable[str] = ()
) -> Iterator[str]:
    """Return the lines of an element at a level of nesting, with the lines of its content."""
    empty = "  " * level + ET.tostring(ET.Element(tag, attributes), encoding="unicode")
    rows = iter(within)
    first = next(rows, None)
    if first is None:
        yield empty
        return
    yield empty.removesuffix(" />") + ">"
    yield first
    yield from rows
    yield f"{'  ' * level}</{tag}>"


def _coverage_rates(sources: Iterable[SourceFile]) -> dict[str, str]:
    every = list(sources)
    lines = sum(each.line_count for each in every)
    branches = sum(each.outcome_count for each in every)
    return {
        "line-rate": _format_rate(sum(each.lines_hit for each in every), lines),
        "branch-rate": _format_rate(sum(each.outcomes_hit for each in every), branches),
    }


def _format_rate(part: int, whole: int) -> str:
    return f"{part / whole if whole else 1.0:.4f}"
