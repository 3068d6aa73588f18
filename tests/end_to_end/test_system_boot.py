"""A Linux kernel boots under the recorder; its decoded path is the executed one.

A recording of a boot takes 3 seconds of CPU time.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from programs.build import build
from rtit.perfdata.system_processes import cr3_of_process
from rtit.trace import Selection, Trace
from rtit.views.verify import verify_threads
from support.boot import APPEND, QEMU, build_module, find_kernel, write_initrd
from support.recordings import RTIT

KERNEL_START = 1 << 63
LOAD_ADDRESS = 0x100_0000
LATEST = 1 << 60
"""A time after the end of all recordings."""
PSB = b"\x02\x82" * 8

SCRIPT = """
busybox mount -t proc proc /proc
busybox echo of 1 | busybox sed s/of/line/
busybox head -n 1000 /proc/kallsyms
/bin/forks_and_execs
"""
PROGRAM_OUTPUT = "work\nwork\nwork\nchild\nsecond\n"

TWO_PROCESSORS_SCRIPT = """
busybox mount -t proc proc /proc
busybox mkdir /sys
busybox mount -t sysfs sysfs /sys
busybox echo of 1 | busybox sed s/of/line/
for mask in 1 2; do
    busybox taskset $mask busybox cat /proc/self/stat
    busybox taskset -p $mask 1
    read line < /proc/1/stat
    echo $line
done
busybox taskset -p 3 1
cd /sys/devices/system/cpu/cpu1
echo 0 > online
echo $(busybox nproc) processor
echo 1 > online
echo $(busybox nproc) processors
"""
"""Programs run on a given processor and print which one, and the shell migrates. Then the second
processor stops and starts again."""


PAGE_TABLE = 0x800_0000
MOVED_PAGE_TABLE = r"""
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched.h>

/* Moves the first level of the page table of the process that writes to the parameter. */
static int move(const char *text, const struct kernel_param *parameter)
{
	pgd_t *moved = __va(PAGE_TABLE);
	unsigned long cr3;

	preempt_disable();
	memcpy(moved, current->mm->pgd, PAGE_SIZE);
	current->mm->pgd = moved;
	asm volatile("mov %%cr3, %0" : "=r"(cr3));
	cr3 = PAGE_TABLE | (cr3 & ~PAGE_MASK);
	asm volatile("mov %0, %%cr3" : : "r"(cr3) : "memory");
	preempt_enable();
	return 0;
}

static const struct kernel_param_ops operations = { .set = move };
module_param_cb(move, &operations, NULL, 0200);
MODULE_LICENSE("GPL");
""".replace("PAGE_TABLE", hex(PAGE_TABLE))
MOVED_PAGE_TABLE_SCRIPT = """
busybox mkdir /sys
busybox mount -t sysfs sysfs /sys
busybox insmod /page_table.ko
echo 1 > /sys/module/page_table/parameters/move
for mask in 1 2 1 2; do
    busybox taskset -p $mask 1
    busybox echo of 1 | busybox sed s/of/line/
done
"""
"""The shell, which never ends, moves its page table, and then migrates."""

COUNTED_TIME = (
    *("-icount", "shift=0,sleep=off"),
    *("-rtc", "base=2026-01-01T00:00:00,clock=vm"),
    *("-seed", "1"),
)
"""Options of QEMU with which boots repeat."""


@dataclass(frozen=True)
class Boot:
    """A recorded boot; `output` has the console and the messages of rtit."""

    data: Path
    truth: Path
    output: str

    def verified_instructions(self) -> int:
        """Return the number of instructions, all of which are decoded as executed."""
        [instructions] = self.verified_instructions_by_processor()
        return instructions

    def verified_instructions_by_processor(self) -> list[int]:
        """Return the number of instructions of each processor, all decoded as executed."""
        with Trace(self.data) as trace:
            verdicts = verify_threads(trace, str(self.truth))
        for verdict in verdicts:
            assert verdict.identical, verdict.reason
        return [verdict.instructions for verdict in verdicts]

    def count_instructions_of_programs_by_processor(self) -> list[int]:
        """Return the numbers of traced instructions in the lower half of the addresses."""
        totals = []
        with Trace(self.data) as trace:
            for stream in trace.streams:
                parts = ((np.asarray(ips), np.asarray(counts)) for ips, counts, _ in stream.runs())
                totals.append(int(sum(counts[ips < KERNEL_START].sum() for ips, counts in parts)))
        return totals

    def count_instructions_by_page_table(self) -> dict[int, int]:
        """Return the instructions of programs by CR3, from a recording of only programs."""
        counts: dict[int, int] = {}
        with Trace(self.data) as trace:
            for stream in trace.by_thread(always_split=True):
                if cr3 := cr3_of_process(stream.pid):
                    counts[cr3] = counts.get(cr3, 0) + stream.counts().instructions
        return {cr3: count for cr3, count in counts.items() if count}


def record_boot(
    folder: Path,
    *options: str,
    append: str = APPEND,
    script: str = SCRIPT,
    qemu_options: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> Boot:
    """Record a boot to power off, in which `script` runs; `files` has more files by path."""
    kernel, initrd = find_kernel(), folder / "initrd"
    program = build("forks_and_execs").read_bytes()
    write_initrd(initrd, script, {"bin/forks_and_execs": program, **(files or {})})
    boot = Boot(folder / "boot.data", folder / "boot.truth", "")
    outputs = ("-o", str(boot.data), "--truth", str(boot.truth))
    machine = ("--kernel", str(kernel), "--initrd", str(initrd), "--append", append)
    found = subprocess.run(
        [*RTIT, "record", *outputs, *options, "--system", *machine, "--", *qemu_options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout
    assert "line 1\n" in found.stdout
    assert "warning" not in found.stdout
    return Boot(boot.data, boot.truth, found.stdout.replace("\r", ""))


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """A boot with the default event."""
    return record_boot(tmp_path_factory.mktemp("boot"))


def test_boot_is_decoded_as_executed(boot: Boot) -> None:
    assert boot.verified_instructions() > 100_000_000


def test_symbols_are_those_of_the_running_kernel(boot: Boot) -> None:
    # The kernel has moved itself to a random address.
    printed = re.findall(r"^[0-9a-f]{16} [a-zA-Z] \S+$", boot.output, re.MULTILINE)
    symbols = Path(f"{boot.data}.kallsyms").read_text().splitlines()
    assert len(printed) == 1000
    assert any(line.split()[1] in "tT" for line in printed)
    assert set(printed) <= set(symbols)


def test_threads_of_a_boot_have_names(boot: Boot) -> None:
    with Trace(boot.data) as trace:
        names = {process.pid: process.name for process in trace.processes}
        assert names[0] == "swapper"
        assert {"kthreadd", "busybox"} <= set(names.values())


def test_addresses_of_a_program_have_the_names_of_its_file(boot: Boot) -> None:
    assert PROGRAM_OUTPUT in boot.output
    symbols = subprocess.run(
        ["nm", build("forks_and_execs")], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in symbols.stdout.splitlines()]
    addresses = {row[2]: int(row[0], 16) for row in rows if len(row) == 3}
    with Trace(boot.data) as trace:
        pids = [process.pid for process in trace.processes if process.name == "forks_and_execs"]
        assert len(pids) == 2
        for pid in pids:
            for function in ("main", "say", "execv"):
                found = trace.symbols.lookup(pid, LATEST, addresses[function] + 1)
                assert (found.name, found.offset) == (function, 1)
                assert found.module == "/bin/forks_and_execs"


@pytest.mark.slow
@pytest.mark.parametrize(
    "event", ["intel_pt/cyc,mtc_period=0/", "intel_pt//k", "intel_pt//u", "intel_pt/event/"]
)
def test_boot_with_another_event_is_decoded_as_executed(event: str, tmp_path: Path) -> None:
    assert record_boot(tmp_path, "-e", event).verified_instructions() > 1_000_000


@pytest.mark.slow
def test_cr3_filter_selects_one_page_table(boot: Boot, tmp_path: Path) -> None:
    lines = Path(f"{boot.data}.kallsyms").read_text().splitlines()
    symbols = {name: int(address, 16) for address, _, name in map(str.split, lines)}
    # The first page table of the kernel; without KASLR, the kernel is at a fixed address.
    cr3 = LOAD_ADDRESS + symbols["init_top_pgt"] - symbols["_text"]
    part = record_boot(tmp_path, "--cr3", hex(cr3), append=f"{APPEND} nokaslr")
    assert 1_000_000 < part.verified_instructions() < boot.verified_instructions()


@pytest.fixture(scope="module")
def counted_boot(tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """A boot that repeats."""
    return record_boot(tmp_path_factory.mktemp("counted"), qemu_options=COUNTED_TIME)


@pytest.fixture(scope="module")
def counted_programs(tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """The programs of the boot that repeats."""
    folder = tmp_path_factory.mktemp("counted_programs")
    return record_boot(folder, "-e", "intel_pt//u", qemu_options=COUNTED_TIME)


@pytest.mark.slow
def test_code_at_cpl_3_is_what_the_user_filter_of_the_unit_traces(
    counted_boot: Boot, counted_programs: Boot
) -> None:
    paths = []
    for found in (counted_boot, counted_programs):
        with Trace(found.data) as trace:
            # `Trace.blocks` would sort the blocks by thread.
            [stream] = trace.streams
            blocks = stream.blocks(extra_columns=["cpl", "cr3"])
            parts = [batch.select_rows(batch.cpl == 3) for batch in blocks]
        rows = [
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("start", "instructions", "cr3")
        ]
        paths.append(rows)
    (starts, counts, page_tables), (user_starts, user_counts, _) = paths
    assert len(user_starts) > 10_000
    assert starts.tolist() == user_starts.tolist()
    assert counts.tolist() == user_counts.tolist()
    # The shell, and the programs that it starts.
    assert len(np.unique(page_tables)) > 3
    assert page_tables.all()


@pytest.mark.slow
def test_boots_with_counted_time_have_the_same_recording(
    counted_boot: Boot, tmp_path: Path
) -> None:
    again = record_boot(tmp_path, qemu_options=COUNTED_TIME)
    recordings = [each.data.read_bytes() for each in (counted_boot, again)]
    # The paths of the initial file systems differ, and so do a few instructions after power off.
    first, second = (data[data.index(PSB) : len(data) * 99 // 100] for data in recordings)
    end = min(len(first), len(second))
    assert end > 1_000_000
    assert first[:end] == second[:end]


@pytest.mark.slow
def test_cr3_filter_selects_one_process(counted_programs: Boot, tmp_path: Path) -> None:
    by_page_table = counted_programs.count_instructions_by_page_table()
    assert counted_programs.verified_instructions() == sum(by_page_table.values())
    # The shell, which runs the script, executes most instructions.
    cr3 = max(by_page_table, key=by_page_table.__getitem__)
    one = record_boot(tmp_path, "--cr3", hex(cr3), qemu_options=COUNTED_TIME)
    assert one.verified_instructions() > by_page_table[cr3]
    assert one.count_instructions_of_programs_by_processor() == [by_page_table[cr3]]


def record_boot_of_two_processors(folder: Path, thread: str, event: str) -> Boot:
    """Record a boot; `thread` is QEMU's choice of threads for processors: multi or single."""
    boot = record_boot(
        folder,
        *("-e", event, "--cpus", "2"),
        script=TWO_PROCESSORS_SCRIPT,
        qemu_options=("-accel", f"tcg,thread={thread}"),
    )
    assert "1 processor\n" in boot.output
    assert "2 processors\n" in boot.output
    return boot


@pytest.fixture(scope="module")
def boot_of_two(tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """A boot with two processors in threads of their own."""
    folder = tmp_path_factory.mktemp("boot_of_two")
    return record_boot_of_two_processors(folder, "multi", "intel_pt//")


@pytest.mark.slow
def test_boot_of_two_processors_is_decoded_as_executed(boot_of_two: Boot) -> None:
    first, second = boot_of_two.verified_instructions_by_processor()
    assert first > 100_000_000
    assert second > 10_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("thread", "event"),
    [
        ("single", "intel_pt//"),
        ("multi", "intel_pt/cyc,mtc_period=0/"),
        ("multi", "intel_pt//k"),
        ("multi", "intel_pt//u"),
    ],
)
def test_boot_of_two_processors_in_another_way_is_decoded_as_executed(
    thread: str, event: str, tmp_path: Path
) -> None:
    boot = record_boot_of_two_processors(tmp_path, thread, event)
    least = 100_000 if event.endswith("u") else 10_000_000
    assert min(boot.verified_instructions_by_processor()) > least


@pytest.mark.slow
@pytest.mark.parametrize("thread", ["multi", "single"])
def test_cr3_filter_selects_one_process_on_both_processors(thread: str, tmp_path: Path) -> None:
    modules = {"page_table.ko": build_module(tmp_path, "page_table", MOVED_PAGE_TABLE)}
    # The kernel does not use the memory of a crash kernel.
    boot = record_boot(
        tmp_path,
        *("--cpus", "2", "--cr3", hex(PAGE_TABLE)),
        append=f"{APPEND} nokaslr crashkernel=16M@{PAGE_TABLE:#x}",
        script=MOVED_PAGE_TABLE_SCRIPT,
        qemu_options=("-accel", f"tcg,thread={thread}"),
        files=modules,
    )
    assert min(boot.verified_instructions_by_processor()) > 10_000
    assert min(boot.count_instructions_of_programs_by_processor()) > 1000


@pytest.mark.slow
def test_idle_thread_of_each_processor_has_its_own_stack(boot_of_two: Boot) -> None:
    """All idle threads have tid 0."""
    with Trace(boot_of_two.data) as trace:
        tree = trace.call_tree(Selection(tids=(0,)))
    idle = np.flatnonzero(tree.function == tree.functions.index("do_idle"))
    roots = set()
    for row in idle.tolist():
        root = row
        while tree.parent[root] >= 0:
            root = int(tree.parent[root])
        roots.add(root)
    assert len(roots) >= 2


@pytest.mark.slow
def test_threads_run_on_the_processors_and_in_the_order_that_linux_reports(
    boot_of_two: Boot,
) -> None:
    # /proc/PID/stat has the processor (field 39) on which do_task_stat ran.
    lines = re.findall(r"^(\d+) \(\w+\) R (.*)$", boot_of_two.output, re.MULTILINE)
    printed = [(int(fields.split()[35]), int(tid)) for tid, fields in lines]
    assert [cpu for cpu, _ in printed] == [0, 0, 1, 1]
    assert printed[1][1] == printed[3][1] == 1
    selection = ("--function", "do_task_stat", "--fields", "cpu,tid,time")
    listing = subprocess.run(
        [*RTIT, "instructions", "-i", str(boot_of_two.data), *selection],
        capture_output=True,
        text=True,
        check=True,
    )
    starts: dict[tuple[int, int], int] = {}
    for line in listing.stdout.splitlines():
        cpu, tid, time = map(int, re.findall(r"\d+", line))
        starts.setdefault((cpu, tid), time)
    assert sorted(starts, key=starts.__getitem__) == printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--system", "--", "true"], f"--system needs the command of {QEMU}"),
        (["--system", "--", QEMU, "-d", "int"], "-d cannot be used with --system"),
        (["--kernel", "bzImage"], "--kernel needs --system"),
        (["--initrd", "initrd", "true"], "--initrd and --append need --kernel"),
        (["--system", "--cpus", "2", "--", QEMU], "--cpus with --system needs --kernel"),
        (["--cr3", "0x1000", "true"], "--cr3 needs --system"),
        (["--system", "--", QEMU, "-S"], "-S cannot be used with --system"),
        (["--system", "--", QEMU, "-enable-kvm", "-S"], "-enable-kvm cannot be used with --system"),
        (["--system", "--", QEMU, "--d", "int"], "--d cannot be used with --system"),
        (["--system", "--", QEMU, "-M", "pc,accel=kvm"], "accel=kvm cannot be used with --system"),
    ],
)
def test_impossible_options_of_systems_are_refused(arguments: list[str], message: str) -> None:
    found = subprocess.run(
        [*RTIT, "record", *arguments], capture_output=True, text=True, check=False
    )
    assert found.returncode != 0
    assert message in found.stderr
    assert len(found.stderr.splitlines()) <= 2


def test_missing_emulator_is_named_with_its_package(tmp_path: Path) -> None:
    found = subprocess.run(
        [*RTIT, "record", "--system", "--", QEMU],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 127
    assert "is not installed (Debian and Ubuntu: qemu-system-x86)" in found.stderr


def test_emulator_before_the_oldest_version_is_refused(tmp_path: Path) -> None:
    qemu = tmp_path / QEMU
    qemu.write_text("#!/bin/sh\necho 'QEMU emulator version 6.2.0 (Debian 1:6.2)'\n")
    qemu.chmod(0o755)
    found = subprocess.run(
        [*RTIT, "record", "--system", "--", qemu], capture_output=True, text=True, check=False
    )
    assert found.returncode == 125
    assert found.stderr == (
        f"rtit record: {qemu} is version 6.2.0, but rtit records whole systems only with QEMU 7.2 "
        "and later\n"
    )


def test_missing_kernel_is_named_with_its_package(tmp_path: Path) -> None:
    found = subprocess.run(
        [*RTIT, "record", "--system", "--kernel", "bzImage"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 125
    assert found.stderr.startswith("rtit record: -kernel bzImage: no such file (unpack a kernel")
    assert found.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_machine_without_kernel_is_reported(tmp_path: Path) -> None:
    find_kernel()
    words = ["-display", "none", "-nodefaults", "-monitor", "stdio"]
    found = subprocess.run(
        [*RTIT, "record", "--system", "--", QEMU, *words],
        cwd=tmp_path,
        input="quit\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "nothing was recorded: the machine did not reach the 32-bit entry" in found.stderr
