"""Docstrings are plain text with `code` in backticks; this makes reStructuredText of them."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any

from public_constants import describe_constants

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_CODE = re.compile(r"`([^`]+)`")


def to_rst(text: str) -> str:
    """Return the text with markup escaped; indented text and tables become literal blocks."""
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", text.strip("\n")))


def _block(text: str) -> str:
    lines = text.split("\n")
    if lines[0].startswith("* "):
        items = re.split(r"\n(?=\* )", text)
        return "\n".join("* " + _inline(item[2:]) for item in items)
    parts = []
    for is_literal, group in groupby(lines, key=lambda line: line.startswith((" ", "+-", "|"))):
        part = list(group)
        literal = "::\n\n" + "\n".join("    " + line for line in part)
        parts.append(literal if is_literal else _inline("\n".join(part)))
    return "\n\n".join(parts)


def _inline(text: str) -> str:
    words = " ".join(text.split())
    result, end = "", 0
    for code in _CODE.finditer(words):
        result += _escape(words[end : code.start()])
        before = "" if not result or result[-1].isspace() else "\\ "
        result += f"{before}``{code[1]}``\\ "
        end = code.end()
    return result + _escape(words[end:])


def _escape(text: str) -> str:
    return re.sub(r"([\\*_|`])", r"\\\1", text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Convert each docstring before autodoc parses it."""

    def convert(
        _app: object, what: str, name: str, obj: Any, _options: object, lines: list[str]
    ) -> None:
        lines[:] = [*to_rst("\n".join(lines)).split("\n"), ""]
        if what == "module":
            for constant, description in describe_constants(obj).items():
                lines += [f".. py:data:: {constant}", f"   :module: {name}", ""]
                lines += ["   " + line for line in to_rst(description).split("\n")]
                lines.append("")

    app.connect("autodoc-process-docstring", convert)
    return {"parallel_read_safe": True}
