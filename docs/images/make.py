"""Draw the pictures of the README, as SVG: a real session in a terminal, and a flame graph.

    python docs/images/make.py

Compiles docs/examples/program.c, records it, runs the commands below and writes session.svg. Then
records `ls -l` and writes flamegraph.svg.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

import rtit
from rtit.views.call_tree import merge_functions
from rtit.views.flame_graph import flame_graph

HERE = Path(__file__).resolve().parent
PROGRAM = HERE.parent / "examples" / "program.c"
SESSION = (
    ("rtit record -q -- ./program", 2),
    ("rtit report", 15),
    ("rtit coverage", 5),
    ("rtit instructions --function is_prime --fields ip,sym,asm --tail 5", 5),
)
"""Commands, each with the number of lines of output to show."""
FONT, WIDTH, LINE, MARGIN = 14, 8.43, 19, 18


def run_session(folder: Path) -> list[tuple[str, str]]:
    """Return the lines of the terminal, each as its kind (`command` or `output`) and its text."""
    shutil.copy(PROGRAM, folder)
    subprocess.run(["cc", "-g", "-O2", "-o", "program", PROGRAM.name], cwd=folder, check=True)
    lines = []
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command, most in SESSION:
        output = subprocess.run(
            command.split(),
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.replace(f"{folder}/", "")
        lines.append(("command", command))
        lines += [("output", line) for line in output.rstrip().splitlines()[:most]]
        lines.append(("output", ""))
    return lines[:-1]


def draw(lines: list[tuple[str, str]]) -> str:
    """Return the SVG of a terminal with these lines."""
    width = round(2 * MARGIN + WIDTH * (2 + max(len(text) for _, text in lines)))
    height = 2 * MARGIN + LINE * len(lines)
    rows = []
    for number, (kind, text) in enumerate(lines):
        y = MARGIN + LINE * number + FONT
        shown = escape(text).replace(" ", "\N{NO-BREAK SPACE}")  # viewers join spaces
        prompt = '<tspan class="prompt">$\N{NO-BREAK SPACE}</tspan>' if kind == "command" else ""
        rows.append(f'<text x="{MARGIN}" y="{y}" class="{kind}">\n{prompt}{shown}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<title>A session with rtit: record, report, coverage, instructions</title>",
            "<style>",
            f"text {{ font: {FONT}px ui-monospace, 'DejaVu Sans Mono', Menlo, monospace }}",
            "text { fill: #c9d1d9 }",
            ".command { fill: #ffffff; font-weight: bold } .prompt { fill: #7ee787 }",
            "</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
            *rows,
            "</svg>\n",
        ]
    )


def draw_flame_graph(folder: Path) -> bytes:
    """Return the flame graph of `ls -l` in a folder, without small frames."""
    data = folder / "ls.data"
    command = [sys.executable, "-m", "rtit", "record", "-q", "-o", data.name, "--", "ls", "-l"]
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    with rtit.Trace(data) as trace:
        root = merge_functions(trace.call_tree())
    return b"".join(flame_graph(root, "ls -l", min_share=0.004, width=860))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        made_in = Path(name).resolve()
        (HERE / "session.svg").write_text(draw(run_session(made_in)))
        (HERE / "flamegraph.svg").write_bytes(draw_flame_graph(made_in))
