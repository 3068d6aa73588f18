"""Mutates the Rust trace unit (crates/unit), and prints which mutations no test notices.

python tests/mutants/run_rust.py [--seed N] [--count N]

At most one mutation of a function is drawn; those that do not compile are skipped. The Rust
tests of the crate run first, then, if they pass, the property tests that compare the unit with
the Python one (tests/unit/bulk). The exit code is 1 if a mutation survives. `equivalent.txt`
names those that change nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from mutants.results import EQUIVALENT, RUST, known_equivalents  # noqa: E402
from mutants.run_drawn import stable_rank  # noqa: E402
from mutants.rust_mutation import Edit, edits  # noqa: E402

SOURCES = "crates/unit/src"
TREE = ROOT / "build" / "mutants" / "unit"
TARGET = ROOT / "build" / "mutants" / "target"
TEXT_FILES = ("error.rs",)
"""Files of error texts."""
SECONDS = 30
"""Limit of processor time for the Rust tests, which take a few seconds."""
MEMORY = 8 << 30
TESTS = ["-p", "rtit-unit", "--lib", "--tests"]


def mutated_files() -> list[Path]:
    """Return the files to mutate."""
    return sorted(path for path in (ROOT / SOURCES).glob("*.rs") if path.name not in TEXT_FILES)


def all_mutations() -> list[Edit]:
    """Return all mutations."""
    found: list[Edit] = []
    for path in mutated_files():
        found += edits(str(path.relative_to(ROOT)), path.read_text())
    return found


def draw_mutations(seed: int) -> Iterator[Edit]:
    """Yield the mutations except for known equivalents, in the order of the draw."""
    equivalent = {name for name in known_equivalents() if name.startswith(RUST)}
    found = all_mutations()
    if unknown := sorted(equivalent - {each.mutation.name for each in found}):
        raise RuntimeError(f"{EQUIVALENT.name} has mutations of code that is not there: {unknown}")
    left = [each for each in found if each.mutation.name not in equivalent]
    yield from sorted(left, key=lambda each: stable_rank(seed, each.mutation.name))


class WorkspaceCopy:
    """A copy of the workspace for one mutation at a time."""

    def __init__(self) -> None:
        for name in ("crates", "python"):
            skip = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.rmtree(TREE / name, ignore_errors=True)
            shutil.copytree(ROOT / name, TREE / name, ignore=skip)
        for name in ("Cargo.toml", "Cargo.lock"):
            shutil.copy(ROOT / name, TREE / name)
        for path in (TREE / SOURCES).glob("*.rs"):
            path.touch()  # cargo has perhaps built a mutation of it

    def tests_compile(self) -> bool:
        return self._cargo("test", "--no-run", *TESTS).returncode == 0

    def failing_test(self) -> str | None:
        """Return a Rust test that fails or takes too long; None if all pass."""
        result = self._cargo("test", *TESTS)
        if result.returncode == 0:
            return None
        failed = re.search(r"^---- (\S+) stdout ----", result.stdout, re.M)
        return failed[1] if failed else "a test that did not end"

    def failing_property(self) -> str | None:
        """Return a property test of the unit in Python that fails, or None."""
        built = self._cargo("build", "-p", "rtit-python", "--features", "pyo3/extension-module")
        built.check_returncode()
        shutil.copy(TARGET / "tests" / "lib_core.so", TREE / "python/rtit/_core.abi3.so")
        path = os.pathsep.join((str(TREE / "python"), str(HERE.parent)))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-rf", "-p"]
        command += ["mutants.plugin", "-p", "no:cacheprovider", str(HERE.parent / "unit" / "bulk")]
        env = {**os.environ, "PYTHONPATH": path}
        result = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        if result.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {result.returncode}: {result.stdout[-2000:]}")
        failed = re.search(r"^FAILED (\S+)", result.stdout, re.M)
        return failed[1] if failed else None

    def _cargo(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "CARGO_TARGET_DIR": str(TARGET), "RUSTFLAGS": "-Awarnings"}
        env |= {"CARGO_PROFILE_TESTS_OPT_LEVEL": "1", "CARGO_PROFILE_TESTS_INCREMENTAL": "true"}
        return subprocess.run(
            ["cargo", command, "--profile", "tests", "--quiet", *arguments],
            cwd=TREE,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=_limit_resources
            if "--no-run" not in arguments and command == "test"
            else None,
        )


def _limit_resources() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def find_noticer(tree: WorkspaceCopy, edit: Edit) -> tuple[str, str] | None:
    """Return what noticed, and which test; None if the mutation does not compile."""
    path = TREE / edit.mutation.module
    source = path.read_text()
    path.write_text(edit.applied(source))
    try:
        if not tree.tests_compile():
            return None
        if test := tree.failing_test():
            return "a Rust test", test
        if test := tree.failing_property():
            return "a property test", test
        return "no test", ""
    finally:
        path.write_text(source)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    arguments = parser.parse_args()
    tree = WorkspaceCopy()
    if not tree.tests_compile() or (test := tree.failing_test()):
        raise RuntimeError(f"the tests fail without a mutation: {test}")
    noticed: Counter[str] = Counter()
    functions: set[tuple[str, str]] = set()
    for edit in draw_mutations(arguments.seed):
        function = (edit.mutation.module, edit.mutation.function)
        if noticed.total() == arguments.count:
            break
        if function in functions or (noticer := find_noticer(tree, edit)) is None:
            continue
        functions.add(function)
        noticed[noticer[0]] += 1
        noticer_text = f"{noticer[0]} ({noticer[1]})" if noticer[1] else noticer[0]
        print(f"noticed by {noticer_text}: {edit.mutation.name}", flush=True)
    print(
        f"{noticed.total()} mutations of {SOURCES} (seed {arguments.seed}): "
        f"{noticed['a Rust test']} noticed by the crate's tests, "
        f"{noticed['a property test']} by property tests, {noticed['no test']} survived"
    )
    return int(noticed["no test"] > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"mutants: {error}")
