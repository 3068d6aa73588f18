"""Calls of a recorded boot, against what the kernel itself prints about its calls.

`initcall_debug` prints each initcall with the id of its thread, and `sysrq l` prints the stack of
the running task, which the kernel finds by its own unwinder.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from programs.build import build
from rtit.image import KERNEL_START
from rtit.trace import Trace
from rtit.trace.tables.call_tree import CallKind, CallTree, RootKind
from rtit.views.verify import verify_threads
from support.boot import APPEND, find_kernel, write_initrd
from support.recordings import RTIT

pytestmark = pytest.mark.slow

SCRIPT = """
busybox mount -t proc proc /proc
busybox cat /proc/version
busybox echo l > /proc/sysrq-trigger
/bin/forks_and_execs
"""


@dataclass(frozen=True)
class Boot:
    """A recorded boot; `console` is what the kernel printed."""

    data: Path
    console: str
    tree: CallTree

    @property
    def instructions(self) -> int:
        """Executed instructions, as the recorder counted them."""
        [count] = re.findall(r"rtit record: ([\d,]+) instructions", self.console)
        return int(count.replace(",", ""))

    def addresses(self) -> dict[str, set[int]]:
        """Return the addresses of the kernel's symbols."""
        found: dict[str, set[int]] = {}
        for line in Path(f"{self.data}.kallsyms").read_text().splitlines():
            address, _, name = line.split()
            found.setdefault(name, set()).add(int(address, 16))
        return found


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """A boot in which the kernel prints its initcalls and a stack."""
    folder = tmp_path_factory.mktemp("boot")
    kernel, initrd, data = find_kernel(), folder / "initrd", folder / "boot.data"
    program = build("forks_and_execs").read_bytes()
    write_initrd(initrd, SCRIPT, {"bin/forks_and_execs": program})
    append = f"{APPEND.replace('quiet ', '')} initcall_debug ignore_loglevel sysrq_always_enabled"
    machine = ("--kernel", str(kernel), "--initrd", str(initrd), "--append", append)
    found = subprocess.run(
        [*RTIT, "record", "-o", str(data), "--system", *machine],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    with Trace(data) as trace:
        tree = trace.call_tree()
    return Boot(data, found.stdout.replace("\r", ""), tree)


def path_of(tree: CallTree, row: int) -> list[int]:
    """Return the rows from a node to its root."""
    rows = [row]
    while (parent := int(tree.parent[rows[-1]])) >= 0:
        rows.append(parent)
    return rows


def rows_of(tree: CallTree, function: str) -> list[int]:
    """Return the rows of a function."""
    return np.flatnonzero(tree.function == tree.functions.index(function)).tolist()


def test_self_instructions_add_up_to_those_of_the_boot(boot: Boot) -> None:
    assert int(boot.tree.self_instructions.sum()) == boot.instructions


def test_rows_of_a_task_have_the_instructions_of_its_calls(boot: Boot) -> None:
    """Calls know the task by its stack: each return must be to the caller."""
    tree = boot.tree
    in_calls, in_rows = Counter[int](), Counter[int]()
    for tid in np.unique(tree.tid).tolist():
        in_calls[tid] = int(tree.self_instructions[tree.tid == tid].sum())
    with Trace(boot.data) as trace:
        for rows in trace.blocks():
            tids, indices = np.unique(rows.extra_columns["tid"], return_inverse=True)
            counts = np.bincount(indices, weights=rows.instructions)
            for tid, count in zip(tids.tolist(), counts.tolist(), strict=True):
                in_rows[tid] += int(count)
    assert len(in_rows) > 50
    assert in_rows == in_calls


def test_each_stack_of_the_kernel_is_known_from_its_start(boot: Boot) -> None:
    tree = boot.tree
    assert tree.statistics.returned > 1_000_000
    assert (tree.statistics.unknown, tree.statistics.switched, tree.statistics.choices) == (0, 0, 0)
    # A task that `__switch_to` confuses with another one returns to an unknown caller.
    is_root = (tree.parent < 0) & (tree.entry >= KERNEL_START)
    roots = Counter(
        (tree.functions[function], RootKind(root))
        for function, root in zip(tree.function[is_root], tree.root[is_root], strict=True)
    )
    tasks = len(np.unique(tree.tid)) - 1  # not the first one
    assert roots == {
        ("ret_from_fork", RootKind.NEW_STACK): tasks,
        ("__switch_to", RootKind.START): tasks,
    }
    assert tasks > 50


def test_initcalls_are_those_that_the_kernel_printed(boot: Boot) -> None:
    printed = re.findall(r"\] calling  (\w+)\+0x0/0x[0-9a-f]+ @ (\d+)", boot.console)
    # Several functions can have the same name, and several symbols the same address.
    addresses = boot.addresses()
    first = {each: min(addresses[name]) for name, _ in printed for each in addresses[name]}
    wanted = Counter((min(addresses[name]), int(tid)) for name, tid in printed)
    initcalls = np.array([*first], np.uint64)
    # start_kernel initializes the consoles without do_one_initcall.
    tree, found = boot.tree, Counter[tuple[int, int]]()
    callers = [row for name in ("do_one_initcall", "console_init") for row in rows_of(tree, name)]
    is_initcall = np.isin(tree.parent, callers) & np.isin(tree.entry, initcalls)
    for row in np.flatnonzero(is_initcall).tolist():
        found[first[int(tree.entry[row])], int(tree.tid[row])] += int(tree.calls[row])
    assert len(wanted) > 300
    assert found == wanted


def test_boot_begins_with_start_kernel_and_kernel_init(boot: Boot) -> None:
    tree = boot.tree

    def functions_above(row: int) -> list[str]:
        return [tree.functions[tree.function[each]] for each in path_of(tree, row)[1:]]

    [start] = rows_of(tree, "start_kernel")
    assert "x86_64_start_kernel" in functions_above(start)
    assert tree.tid[start] == 0
    [initcall] = [row for row in rows_of(tree, "acpi_init") if tree.calls[row]]
    assert functions_above(initcall)[:3] == [
        "do_one_initcall",
        "kernel_init_freeable",
        "kernel_init",
    ]
    root = path_of(tree, initcall)[-1]
    assert tree.functions[tree.function[root]] == "ret_from_fork"
    assert (tree.root[root], tree.tid[root]) == (RootKind.NEW_STACK, 1)


def test_stack_is_the_one_that_the_kernel_printed(boot: Boot) -> None:
    [text] = re.findall(r"Call Trace:\n.*<TASK>\n((?:.*\n)*?).*RIP: 0033:", boot.console)
    # The unwinder marks other addresses on the stack by "?".
    printed = re.findall(r"\]  (\w[\w.]*)\+(0x[0-9a-f]+)/", text)
    addresses = boot.addresses()
    tree = boot.tree
    [row] = [
        row
        for row in rows_of(tree, "show_stack")
        if "nmi_cpu_backtrace"
        in [tree.functions[tree.function[each]] for each in path_of(tree, row)]
    ]
    sites = [
        int(tree.call_site[each])
        for each in path_of(tree, row)
        if tree.kind[each] == CallKind.CALL and int(tree.call_site[each]) >= KERNEL_START
    ]
    assert len(printed) > 8
    assert len(sites) == len(printed)
    for (name, offset), site in zip(printed, sites, strict=True):
        # A call has 2 to 7 bytes.
        returns_to = {start + int(offset, 16) for start in addresses[name]}
        assert any(site + 2 <= each <= site + 7 for each in returns_to), name


def test_system_call_of_a_program_has_the_functions_of_the_kernel(boot: Boot) -> None:
    tree = boot.tree
    paths = [path_of(tree, row) for row in rows_of(tree, "vfs_read")]
    under_programs = [path for path in paths if tree.entry[path[-1]] < KERNEL_START]
    assert under_programs
    for path in under_programs:
        in_kernel = [row for row in path if int(tree.entry[row]) >= KERNEL_START]
        names = [tree.functions[tree.function[row]] for row in in_kernel]
        assert names[-2:] == ["do_syscall_64", "entry_SYSCALL_64"]


def test_functions_of_programs_have_names_after_fork_and_exec(boot: Boot) -> None:
    """The program's source has these calls."""
    tree = boot.tree
    with Trace(boot.data) as trace:
        parent, child = (
            process.pid for process in trace.processes if process.name == "forks_and_execs"
        )
    found = Counter[tuple[int, str, str]]()
    for function in ("work", "say", "run_again", "run_second_time"):
        for row in rows_of(tree, function):
            caller = tree.functions[tree.function[tree.parent[row]]]
            found[int(tree.tid[row]), caller, function] += int(tree.calls[row])
    assert found == {
        (parent, "main", "work"): 1,
        (parent, "work", "say"): 3,
        (child, "main", "run_again"): 1,
        (child, "run_again", "say"): 1,
        (child, "main", "run_second_time"): 1,
        (child, "run_second_time", "say"): 1,
    }


def test_child_of_the_shell_has_the_file_of_the_shell_until_exec(boot: Boot) -> None:
    """Debian's busybox has no symbols."""
    tree = boot.tree
    with Trace(boot.data) as trace:
        pids = [process.pid for process in trace.processes if process.name == "forks_and_execs"]
    in_program = np.isin(tree.tid, pids) & (tree.entry < KERNEL_START)
    names = {tree.functions[function] for function in tree.function[in_program]}
    assert [name for name in names if name.startswith("0x")] == []
    assert any(name.startswith("busybox+0x") for name in names)


def test_system_call_is_below_the_functions_of_a_program(boot: Boot) -> None:
    tree = boot.tree
    writes = Counter[tuple[str, ...]]()
    for row in rows_of(tree, "ksys_write"):
        names = [tree.functions[tree.function[each]] for each in path_of(tree, row)]
        if "say" in names:
            # The C library has several names for its function.
            above = names[names.index("entry_SYSCALL_64") + 2 : names.index("main") + 1]
            writes[tuple(above)] += int(tree.calls[row])
    assert writes == {
        ("say", "work", "main"): 3,
        ("say", "run_again", "main"): 1,
        ("say", "run_second_time", "main"): 1,
    }


def test_tree_of_one_task_has_its_functions_only(boot: Boot) -> None:
    selected = boot.tree.select_threads([2])
    assert "kthreadd" in selected.functions
    assert "start_kernel" not in selected.functions
    assert int(selected.self_instructions.sum()) == int(
        boot.tree.self_instructions[boot.tree.tid == 2].sum()
    )


Slice = tuple[str, tuple[str, ...]]
"""A call of a timeline: its function, and its callers, the nearest one last."""


def timeline_slices(boot: Boot, *options: str) -> list[Slice]:
    """Return the calls of a timeline that has one track, in the order in which they began."""
    words = [*RTIT, "timeline", "-i", str(boot.data), "--for", "chrome", *options]
    written = subprocess.run(words, capture_output=True, check=True).stdout
    found: list[Slice] = []
    callers: list[str] = []
    tracks = set()
    time = 0
    for event in json.loads(written)["traceEvents"]:
        if event["ph"] == "M":
            continue
        tracks.add(event["tid"])
        assert event["ts"] >= time
        time = event["ts"]
        if event["ph"] == "B":
            found.append((event["name"], tuple(callers)))
            callers.append(event["name"])
        else:
            callers.pop()
    assert not callers
    assert len(tracks) == 1
    return found


def test_timeline_has_the_initcalls_in_the_order_that_the_kernel_printed(boot: Boot) -> None:
    printed = re.findall(r"\] calling  (\w+)\+0x0/0x[0-9a-f]+ @ 1\b", boot.console)
    slices = timeline_slices(boot, "--tid", "1", "--max-depth", "5")
    callers = {each for name, each in slices if name in printed and "do_one_initcall" in each}
    assert callers == {("ret_from_fork", "kernel_init", "kernel_init_freeable", "do_one_initcall")}
    # Several symbols can have one address, and several functions one name.
    addresses = boot.addresses()
    known = set().union(*(addresses[name] for name in printed))
    initcalls = [
        name
        for name, callers in slices
        if callers[-1:] == ("do_one_initcall",) and addresses[name] & known
    ]
    assert len(printed) > 300
    assert len(initcalls) == len(printed)
    for found, wanted in zip(initcalls, printed, strict=True):
        assert addresses[found] & addresses[wanted], (found, wanted)


def test_timeline_shows_system_calls_below_the_functions_of_the_program(boot: Boot) -> None:
    reads = [
        callers
        for name, callers in timeline_slices(boot, "--tid", "1", "--min-length", "1000")
        if name == "vfs_read" and "ret_from_fork" not in callers
    ]
    kernel = boot.addresses()
    assert reads
    for callers in reads:
        names = [name.partition(" ")[0] for name in callers]
        entry = names.index("entry_SYSCALL_64")
        assert names[entry + 1] == "do_syscall_64"
        assert entry > 0
        assert not any(name in kernel for name in names[:entry])


def record_part(folder: Path, event: str) -> tuple[Path, int]:
    """Record a boot with an event; return the recording, and how many instructions were traced."""
    kernel, initrd, data = find_kernel(), folder / "initrd", folder / "boot.data"
    write_initrd(initrd, "busybox mount -t proc proc /proc\nbusybox cat /proc/version")
    machine = ("--kernel", str(kernel), "--initrd", str(initrd), "--append", APPEND)
    truth = str(folder / "boot.truth")
    words = [*RTIT, "record", "-e", event, "-o", str(data), "--truth", truth, "--system"]
    subprocess.run([*words, *machine], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    with Trace(data) as trace:
        [verdict] = verify_threads(trace, truth)
    assert verdict.identical, verdict.reason
    return data, verdict.instructions


def roots_of(tree: CallTree) -> Counter[tuple[str, bool]]:
    """Count the roots by function, and whether they are of the first task."""
    rows = np.flatnonzero(tree.parent < 0).tolist()
    return Counter((tree.functions[tree.function[row]], tree.tid[row] == 0) for row in rows)


def test_calls_of_the_kernel_alone_begin_with_its_entries(tmp_path: Path) -> None:
    data, traced = record_part(tmp_path, "intel_pt//k")
    with Trace(data) as trace:
        tree = trace.call_tree()
    assert int(tree.self_instructions.sum()) == traced
    roots = roots_of(tree)
    assert [count for (_, is_first), count in roots.items() if is_first] == [1]
    others = {name for name, is_first in roots if not is_first}
    assert {"entry_SYSCALL_64", "asm_exc_page_fault", "ret_from_fork"} <= others
    # Code that runs below programs: interrupts, exceptions and system calls.
    entries = {
        name for name in others if name.startswith(("asm_exc_", "asm_sysvec_", "asm_common"))
    }
    assert others == {"entry_SYSCALL_64", "ret_from_fork", "__switch_to"} | entries
    [start] = rows_of(tree, "start_kernel")
    assert tree.tid[start] == 0
    assert int(tree.calls[start]) == 1


def test_calls_of_programs_alone_have_no_function_of_the_kernel(tmp_path: Path) -> None:
    data, traced = record_part(tmp_path, "intel_pt//u")
    with Trace(data) as trace:
        tree = trace.call_tree()
        titles = [stream.title for stream in trace.call_streams()]
    assert int(tree.self_instructions.sum()) == traced
    assert (tree.entry < KERNEL_START).all()
    assert len(titles) > 1
    assert tree.statistics.unknown == 0
