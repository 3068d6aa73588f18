"""The calls of JIT code equal what JavaScript and Java programs log of their own entries."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from programs.build import SOURCES
from rtit.cli.main import main
from rtit.trace import Trace
from rtit.trace.tables.call_tree import CallTree, RootKind
from support.recordings import RTIT, require_backend

NamePath = tuple[str, ...]
"""Names of functions, the outermost first."""

JAVASCRIPT = re.compile(r"JS:[~^+*]?(\w+) .*/jit_calls\.js:")
JAVA = re.compile(r"\w+ JitCalls\.(\w+)\(")
REENTERS = "Builtins_BaselineOutOfLinePrologue"
"""Called at the start of a function; it may jump to newly compiled code of that function."""


def record_jit(folder: Path, tool: str, *arguments: str | Path) -> tuple[Path, Counter[NamePath]]:
    """Record a program; return the recording, and how often the program entered each path."""
    require_backend("qemu")
    command = [shutil.which(tool) or pytest.skip(f"{tool} is not installed"), *map(str, arguments)]
    data = folder / "data"
    words = [*RTIT, "record", "-q", "--backend", "qemu", "-o", str(data), "--", *command]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    rows = (line.rpartition(" ") for line in ended.stdout.splitlines() if line.startswith("work"))
    return data, Counter({tuple(path.split(";")): int(count) for path, _, count in rows})


def read_call_tree(data: Path) -> CallTree:
    """Return the call tree; remove the perf map, which is outside of the test's folder."""
    with Trace(data) as trace:
        tree = trace.call_tree()
        Path(f"/tmp/perf-{trace.processes[0].pid}.map").unlink(missing_ok=True)
    return tree


def entered_paths(tree: CallTree, name: re.Pattern[str], own: set[str]) -> Counter[NamePath]:
    """Return how often each path was entered. Paths have the functions `own` alone."""
    matches = [name.match(each) for each in tree.functions]
    names = [match[1] if match and match[1] in own else None for match in matches]
    reenters = tree.functions.index(REENTERS) if REENTERS in tree.functions else None
    parents, functions = tree.parent.tolist(), tree.function.tolist()
    paths: list[NamePath] = []
    found: Counter[NamePath] = Counter()
    for parent, function, calls in zip(parents, functions, tree.calls.tolist(), strict=True):
        path = paths[parent] if parent >= 0 else ()
        called = names[function]
        if called is not None and not (functions[parent] == reenters and path[-1:] == (called,)):
            path = (*path, called)
            found[path] += calls
        paths.append(path)
    return found


def instructions_by_root(tree: CallTree) -> Counter[RootKind]:
    found: Counter[RootKind] = Counter()
    for kind in RootKind:
        if total := int(tree.total_instructions[(tree.parent < 0) & (tree.root == kind)].sum()):
            found[kind] = total
    return found


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        # Interpreter, Sparkplug and TurboFan; V8 replaces running code, and returns to older code.
        (["--interpreted-frames-native-stack", "--no-turbo-inlining"], []),
        # Without the interpreter: a jump to the exception handler of an interpreted function does
        # not show the function.
        pytest.param(["--always-sparkplug", "--no-opt"], ["throws"], marks=pytest.mark.slow),
    ],
    ids=["all compilers", "exceptions"],
)
def test_calls_of_javascript_equal_the_log_of_the_program(
    flags: list[str], arguments: list[str], tmp_path: Path
) -> None:
    script = SOURCES / "calls" / "jit_calls.js"
    data, expected = record_jit(tmp_path, "node", "--perf-basic-prof", *flags, script, *arguments)
    tree = read_call_tree(data)
    own = {name for path in expected for name in path}
    assert len(own) == (13 if arguments else 11)
    assert entered_paths(tree, JAVASCRIPT, own) == expected
    assert instructions_by_root(tree).keys() == {RootKind.START}


@pytest.mark.slow
def test_calls_of_java_equal_the_log_of_the_program(tmp_path: Path) -> None:
    compiler = shutil.which("javac") or pytest.skip("javac is not installed")
    source = SOURCES / "calls" / "JitCalls.java"
    subprocess.run([compiler, "-d", tmp_path, source], check=True)
    # compiles the functions of the program at their first call, and interprets the others
    flags = ["-Xcomp", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    commands = ("compileonly,JitCalls.*", "dontinline,JitCalls.*", "quiet")
    flags += [f"-XX:CompileCommand={command}" for command in commands]
    flags += ["-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit"]
    data, expected = record_jit(tmp_path, "java", *flags, "JitCalls")
    assert main(["calls", str(data), "-o", str(tmp_path / "calls.txt")]) == 0
    tree = read_call_tree(data)
    own = {name for path in expected for name in path}
    assert len(own) == 10
    assert entered_paths(tree, JAVA, own) == expected
    roots = instructions_by_root(tree)
    assert roots[RootKind.START] > 0.97 * roots.total()
    assert (tree.statistics.unknown > 0) == (RootKind.UNKNOWN in roots)
    printed = (tmp_path / "calls.txt").read_text()
    assert printed.endswith(" led to a call stack that rtit cannot identify\n")
