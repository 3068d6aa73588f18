"""The directive `command-help`: a section for each command of rtit, with its help."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from docutils import nodes
from docutils.parsers.rst import Directive

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def run_rtit(*arguments: str) -> str:
    """Return the standard output of `rtit ARGUMENTS`."""
    return subprocess.run(
        [sys.executable, "-m", "rtit", *arguments],
        env={**os.environ, "COLUMNS": "90"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


class CommandHelp(Directive):
    """Has commands as content, one a line: `record`, or `help PAGE` for a page of help."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return a section for each command, with the help of all its options."""
        sections: list[nodes.Node] = []
        for name in filter(None, map(str.strip, self.content)):
            section = nodes.section(ids=[nodes.make_id(f"rtit {name}")])
            section += nodes.title(text=f"rtit {name}")
            is_page = name.startswith("help ")
            text = run_rtit(*name.split()) if is_page else run_rtit(name, "--help-all")
            section += nodes.literal_block(text, text, language="text")
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
