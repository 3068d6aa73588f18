"""Cobertura's XML (coverage-04.dtd), a package for each folder and a class for each file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from rtit.readable import readable

if TYPE_CHECKING:
    from rtit.coverage.lines import Branch, Source

_HEAD = (
    '<?xml version="1.0" ?>\n'
    "<!DOCTYPE coverage SYSTEM 'http://cobertura.sourceforge.net/xml/coverage-04.dtd'>\n"
)


def cobertura(sources: Sequence[Source], version: str) -> str:
    """The whole document."""
    root = ET.Element("coverage", _rates(sources))
    root.attrib |= {
        "lines-covered": str(sum(each.covered for each in sources)),
        "lines-valid": str(sum(len(each.lines) for each in sources)),
        "branches-covered": str(sum(each.ways for each in sources)),
        "branches-valid": str(sum(2 * len(each.branches) for each in sources)),
        "complexity": "0",
        "timestamp": "0",
        "version": version,
    }
    ET.SubElement(ET.SubElement(root, "sources"), "source").text = "/"
    packages = ET.SubElement(root, "packages")
    folders: dict[str, list[Source]] = defaultdict(list)
    for source in sources:
        folders[str(PurePath(source.path).parent)].append(source)
    for folder, files in folders.items():
        name = {"name": readable(folder), "complexity": "0"}
        package = ET.SubElement(packages, "package", name | _rates(files))
        classes = ET.SubElement(package, "classes")
        for source in files:
            _class(classes, source)
    ET.indent(root)
    return _HEAD + ET.tostring(root, encoding="unicode") + "\n"


def _class(classes: ET.Element, source: Source) -> None:
    path = readable(source.path)
    attributes = {
        "name": PurePath(path).name,
        "filename": path.lstrip("/"),
        "complexity": "0",
    }
    found = ET.SubElement(classes, "class", attributes | _rates([source]))
    methods = ET.SubElement(found, "methods")
    for function in source.functions:
        rate = {"line-rate": str(float(function.count > 0)), "branch-rate": "0"}
        names = {"name": readable(function.name), "signature": "()", "complexity": "0"}
        method = ET.SubElement(methods, "method", names | rate)
        lines = ET.SubElement(method, "lines")
        ET.SubElement(lines, "line", {"number": str(function.line), "hits": str(function.count)})
    branches: dict[int, list[Branch]] = defaultdict(list)
    for branch in source.branches:
        branches[branch.line].append(branch)
    lines = ET.SubElement(found, "lines")
    for line, count in sorted(source.lines.items()):
        here = branches.get(line, [])
        row = {"number": str(line), "hits": str(count), "branch": str(bool(here)).lower()}
        if here:
            ways, of = sum((each.taken > 0) + (each.passed > 0) for each in here), 2 * len(here)
            row["condition-coverage"] = f"{100 * ways // of}% ({ways}/{of})"
        ET.SubElement(lines, "line", row)


def _rates(sources: Iterable[Source]) -> dict[str, str]:
    every = list(sources)
    lines = sum(len(each.lines) for each in every)
    branches = sum(2 * len(each.branches) for each in every)
    return {
        "line-rate": _share(sum(each.covered for each in every), lines),
        "branch-rate": _share(sum(each.ways for each in every), branches),
    }


def _share(part: int, whole: int) -> str:
    return f"{part / whole if whole else 1.0:.4f}"
