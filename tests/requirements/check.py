"""The project's list of the chapter's requirements: each is tested, or listed as open.

`ids.csv` has every requirement (id, section, side, kind); `open.txt` the ids without a test;
`notes.csv` the rows of kind `note` that require nothing, each with the reason. A test claims a
requirement with `@pytest.mark.spec("ID")`, a scenario with a line `spec ID...`. The script
reads both from the source, so that skipped tests count.

Run as a script, it prints the table by area; `--write-open` updates open.txt.
"""

from __future__ import annotations

import ast
import csv
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
OPEN = HERE / "open.txt"
NOTES = HERE / "notes.csv"
SCENARIOS = TESTS.parent / "python" / "rtit" / "scenario" / "library"


def requirements() -> dict[str, dict[str, str]]:
    """Return every requirement by id."""
    with (HERE / "ids.csv").open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def open_ids() -> list[str]:
    """Return the ids of open.txt, in order."""
    return OPEN.read_text().split()


def note_reasons() -> dict[str, str]:
    """Return the rows that require nothing, with the reason."""
    with NOTES.open(newline="") as file:
        return {row["id"]: row["reason"] for row in csv.DictReader(file)}


def claimed_ids() -> dict[str, list[str]]:
    """Return the ids that tests claim, each with its claims (file:line, or file:scenario)."""
    locations: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if _is_spec(node):
                for argument in node.args:  # type: ignore[attr-defined]
                    if isinstance(argument, ast.Constant):
                        location = f"{path.relative_to(TESTS)}:{node.lineno}"  # type: ignore[attr-defined]
                        locations.setdefault(str(argument.value), []).append(location)
    for path in sorted(SCENARIOS.glob("*.scenario")):
        for line in path.read_text().splitlines():
            words = line.split("#")[0].split()
            if words[:1] == ["spec"]:
                for identifier in words[1:]:
                    location = f"scenario/test_library.py:{path.stem}"
                    locations.setdefault(identifier, []).append(location)
    return locations


def _is_spec(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "spec"
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "mark"
    )


def summary_table() -> str:
    """Return the numbers of tested and of all requirements, by area and by side."""
    tested = set(claimed_ids())
    rows = requirements()
    musts = {key: row for key, row in rows.items() if row["kind"] == "must"}
    areas = sorted({key.rsplit("-", 1)[0] for key in musts})
    total = Counter(key.rsplit("-", 1)[0] for key in musts)
    done = Counter(key.rsplit("-", 1)[0] for key in musts if key in tested)
    lines = [f"{area:8} {done[area]:4} / {total[area]}" for area in areas]
    unit = [key for key, row in musts.items() if row["side"] != "decoder"]
    decoder = [key for key, row in musts.items() if row["side"] == "decoder"]
    lines.append(
        f"unit {len(tested.intersection(unit))}/{len(unit)}, "
        f"decoder {len(tested.intersection(decoder))}/{len(decoder)}"
    )
    return "\n".join(lines)


def main() -> None:
    """Print the table, or rewrite open.txt."""
    if "--write-open" in sys.argv[1:]:
        left = sorted(set(requirements()) - set(claimed_ids()) - set(note_reasons()))
        OPEN.write_text("\n".join(left) + "\n")
    print(summary_table())


if __name__ == "__main__":
    main()
