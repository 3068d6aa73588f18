"""Mutates the Rust trace unit (crates/unit), and says which mutations no test notices.

    python tests/mutants/run_rust.py [--seed N] [--count N]

At most one mutation is drawn of a function; those that do not compile are passed over. First the
Rust tests of the crate have to notice, then, if they do not, the property tests that compare the
unit with the Python one (tests/unit/bulk). Exit code 1 if a mutation survives. `equivalent.txt`
names those that change nothing, each with the reason.
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
from mutants.run import rank  # noqa: E402
from mutants.rust import Edit, edits  # noqa: E402

SOURCES = "crates/unit/src"
TREE = ROOT / "build" / "mutants" / "unit"
TARGET = ROOT / "build" / "mutants" / "target"
QUIET = ("error.rs",)
"""Its text is for people."""
SECONDS = 30
"""Of processor time, for the Rust tests: they take a few."""
MEMORY = 8 << 30
TESTS = ["-p", "rtit-unit", "--lib", "--tests"]


def sources() -> list[Path]:
    """The files that are mutated."""
    return sorted(path for path in (ROOT / SOURCES).glob("*.rs") if path.name not in QUIET)


def every() -> list[Edit]:
    """All mutations."""
    found: list[Edit] = []
    for path in sources():
        found += edits(str(path.relative_to(ROOT)), path.read_text())
    return found


def drawn(seed: int) -> Iterator[Edit]:
    """The mutations but the known equivalents, in the order of the draw."""
    equivalent = {name for name in known_equivalents() if name.startswith(RUST)}
    found = every()
    if unknown := sorted(equivalent - {each.mutation.name for each in found}):
        raise RuntimeError(f"{EQUIVALENT.name} has mutations of code that is not there: {unknown}")
    left = [each for each in found if each.mutation.name not in equivalent]
    yield from sorted(left, key=lambda each: rank(seed, each.mutation.name))


class Tree:
    """A copy of the workspace, in which one mutation at a time is made."""

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
        """A Rust test that fails; one that takes too long fails, too. None if all pass."""
        result = self._cargo("test", *TESTS)
        if result.returncode == 0:
            return None
        failed = re.search(r"^---- (\S+) stdout ----", result.stdout, re.M)
        return failed[1] if failed else "a test that did not end"

    def failing_property(self) -> str | None:
        """A property test of the unit in Python that fails."""
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
            preexec_fn=_bounded if "--no-run" not in arguments and command == "test" else None,
        )


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def verdict(tree: Tree, edit: Edit) -> tuple[str, str] | None:
    """Who noticed, and by which test; None if the mutation does not compile."""
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
        return "nobody", ""
    finally:
        path.write_text(source)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    arguments = parser.parse_args()
    tree = Tree()
    if not tree.tests_compile() or (test := tree.failing_test()):
        raise RuntimeError(f"the tests fail without a mutation: {test}")
    noticed: Counter[str] = Counter()
    functions: set[tuple[str, str]] = set()
    for edit in drawn(arguments.seed):
        function = (edit.mutation.module, edit.mutation.function)
        if noticed.total() == arguments.count:
            break
        if function in functions or (found := verdict(tree, edit)) is None:
            continue
        functions.add(function)
        noticed[found[0]] += 1
        who = f"{found[0]} ({found[1]})" if found[1] else found[0]
        print(f"noticed by {who}: {edit.mutation.name}", flush=True)
    print(
        f"{noticed.total()} mutations of {SOURCES} (seed {arguments.seed}): "
        f"{noticed['a Rust test']} noticed by the crate's tests, "
        f"{noticed['a property test']} by property tests, {noticed['nobody']} survived"
    )
    return int(noticed["nobody"] > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"mutants: {error}")
