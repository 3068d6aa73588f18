"""Changes the Rust decoder at the code of each requirement, and prints which test notices.

python tests/mutants/mutate_decoder.py [ROW...]

`native.txt` has the hand-written changes. One build contains all of them, each enabled by a switch
in an environment variable; then the tests of each requirement run with one switch at a
time. Without ROW, the results are written to `build/mutants/native_results.txt`. The exit code
is 1 if a change is not noticed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from requirements.check import TESTS, claimed_ids  # noqa: E402

TREE = ROOT / "build" / "mutants" / "native"
TARGET = ROOT / "build" / "mutants" / "target"
RESULTS = ROOT / "build" / "mutants" / "native_results.txt"
SWITCH_SOURCE = """
/// Whether the change of this number is made.
#[doc(hidden)]
pub(crate) fn mutant(number: u32) -> bool {
    static ON: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let number_set = || std::env::var("RTIT_NATIVE").ok().and_then(|text| text.parse().ok());
    *ON.get_or_init(|| number_set().unwrap_or(0)) == number
}
"""


@dataclass(frozen=True)
class Change:
    """A change: `before`, `old` and `after` stand in the file exactly once, in this order."""

    number: int
    row: str
    file: str
    before: str
    old: str
    after: str
    new: str

    def offset_in(self, text: str) -> int:
        """Return the offset of `old` in the file. Raises ValueError."""
        wanted = self.before + self.old + self.after
        if text.count(wanted) != 1:
            raise ValueError(f"{self.row}: {wanted!r} is {text.count(wanted)} times in {self.file}")
        return text.index(wanted) + len(self.before)

    def with_switch(self, code: str) -> str:
        """Return `code` (`old`, perhaps with other changes) with the switch for this change."""
        text = f"if crate::mutant({self.number}) {{ {self.new} }} else {{ {code} }}"
        return text if self.old.endswith(";") else f"({text})"


def read_changes() -> list[Change]:
    """Return the changes of native.txt."""
    entry = re.compile(r"^(\S+) (\S+)\n- (.*)«(.*)»(.*)\n\+ ?(.*)$", re.M)
    text = re.sub(r"\n *(?=\\n)", "", (HERE / "native.txt").read_text())
    found = []
    for number, match in enumerate(entry.finditer(text), 1):
        row, file, *parts = match.groups()
        before, old, after, new = (part.replace("\\n", "\n") for part in parts)
        found.append(Change(number, row, file, before, old, after, new))
    if len(found) != sum(line.startswith("- ") for line in text.splitlines()):
        raise ValueError("native.txt has a malformed entry")
    return found


def build_native_module(changes: list[Change]) -> None:
    """Build the native module with all changes, in a tree of its own."""
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir(parents=True)
    for name in ("crates", "Cargo.toml", "Cargo.lock", "python"):
        source = ROOT / name
        skip = shutil.ignore_patterns("*.so", "__pycache__")
        if source.is_dir():
            shutil.copytree(source, TREE / name, ignore=skip)
        else:
            shutil.copy(source, TREE / name)
    for file in {change.file for change in changes}:
        path = TREE / file
        path.write_text(
            with_switches(path.read_text(), [each for each in changes if each.file == file])
        )
    for crate in {change.file.split("/")[1] for change in changes}:
        library = TREE / "crates" / crate / "src" / "lib.rs"
        library.write_text(library.read_text() + SWITCH_SOURCE)
    environment = {**os.environ, "CARGO_TARGET_DIR": str(TARGET), "RUSTFLAGS": "-Awarnings"}
    command = ["cargo", "build", "--release", "--quiet", "-p", "rtit-python"]
    command += ["--features", "pyo3/extension-module"]
    subprocess.run(command, cwd=TREE, env=environment, check=True)
    shutil.copy(TARGET / "release" / "lib_core.so", TREE / "python" / "rtit" / "_core.abi3.so")


def with_switches(text: str, changes: list[Change]) -> str:
    """Return a file with all its changes; changes of the same text are nested."""
    changes_by_offset: dict[int, list[Change]] = {}
    for change in changes:
        changes_by_offset.setdefault(change.offset_in(text), []).append(change)
    end = len(text)
    for at in sorted(changes_by_offset, reverse=True):
        old = changes_by_offset[at][0].old
        if at + len(old) > end or any(change.old != old for change in changes_by_offset[at]):
            raise ValueError(f"{changes_by_offset[at][0].row}: another change is within {old!r}")
        code = old
        for change in changes_by_offset[at]:
            code = change.with_switch(code)
        text = text[:at] + code + text[at + len(old) :]
        end = at
    return text


def first_failing_test(number: int, row: str, files: list[Path]) -> str | None:
    """Return the first test of the requirement that fails with the change, or None."""
    path = [str(TREE / "python"), str(HERE.parent)]
    more = {"PYTHONPATH": os.pathsep.join(path), "RTIT_NATIVE": str(number), "RTIT_ROWS": row}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "mutants.plugin", "-p"]
    command += ["no:cacheprovider", "--tb=no", "-rf", *map(str, files)]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **more}, capture_output=True, text=True, check=False
    )
    if result.returncode == 0:
        return None
    if result.returncode != 1:
        raise RuntimeError(f"{row}: {result.stdout[-2000:]}{result.stderr[-2000:]}")
    failed = re.search(r"^FAILED (\S+)", result.stdout, re.M)
    return failed[1] if failed else "?"


def main() -> int:
    changes = read_changes()
    build_native_module(changes)
    selected_rows = set(sys.argv[1:])
    claims = claimed_ids()
    lines: list[str] = []
    checked_rows: set[str] = set()
    for change in changes:
        if selected_rows and change.row not in selected_rows:
            continue
        files = sorted({TESTS / offset_in.split(":")[0] for offset_in in claims[change.row]})
        if change.row not in checked_rows and first_failing_test(0, change.row, files) is not None:
            raise RuntimeError(f"{change.row}: its tests fail without a change")
        checked_rows.add(change.row)
        test = first_failing_test(change.number, change.row, files)
        lines.append(f"{change.row} {change.file}: {change.old} | {change.new} | {test}")
        print(lines[-1], flush=True)
    unnoticed = sum(line.endswith("| None") for line in lines)
    if not selected_rows:
        head = f"{datetime.now(UTC):%Y-%m-%d}: {len(lines)} changes, {unnoticed} unnoticed"
        RESULTS.write_text("\n".join([head, "", *lines]) + "\n")
    return int(unnoticed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
