"""Measures the goals of speed in one run: rtit beside iptr, libipt, perf, and QEMU alone.

`PYTHONPATH=python:bench:tests .venv/bin/python bench/goals.py [--rounds N] [--only GROUP]
[--scale X]` prints the page of results, and leaves it in bench/results unless --only or --scale is
given. It needs a release build (make .venv/.built) and, once, the network for bench/peers. All
sides of a row are measured in each round; a row has the median of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

BENCH = Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH.parent / "tests"))

import clock  # noqa: E402
import entries  # noqa: E402
import peers  # noqa: E402
import recording  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
import workloads  # noqa: E402

LARGE_CODE = ("cc1", "python3")
RTIT: list[str | Path] = [sys.executable, "-m", "rtit"]
LONG = 200_000_000
"""Bytes of the trace that two threads decode."""
LONG_TIMES = 560
"""Rounds of `workloads.python_command` that have at least `LONG` bytes."""
GDB_TIMES = 5_000
"""Rounds of the workload that gdb opens: 500 million instructions."""
CHILDREN = 40


@dataclass(frozen=True)
class Goal:
    """A measured figure, and its limit if it is a goal."""

    what: str
    measured: float
    limit: float | None = None
    is_minimum: bool = False
    unit: str = ""

    def cells(self) -> list[str]:
        measured = f"{self.measured:.2f}{self.unit}"
        if self.limit is None:
            return [self.what, "", measured, ""]
        reached = self.measured >= self.limit if self.is_minimum else self.measured <= self.limit
        sign = ">=" if self.is_minimum else "<="
        wanted = f"{sign} {self.limit:g}{self.unit}"
        return [self.what, wanted, measured, "yes" if reached else "no"]


@dataclass(frozen=True)
class Group:
    """Rows of goals, and the lines of a table of details."""

    goals: list[Goal]
    details: list[str]


Seconds = Mapping[str, Sequence[float]]


def ratio(seconds: Seconds, one: str, other: str) -> float:
    """Return the median of the ratios of two measurements over the rounds."""
    return statistics.median(a / b for a, b in zip(seconds[one], seconds[other], strict=True))


def milliseconds(seconds: Seconds, name: str) -> str:
    return f"{statistics.median(seconds[name]) * 1e3:.1f}" if name in seconds else ""


# --- Decoding: small pieces of six programs ---


def measure_piece(piece: entries.StreamPart, rounds: int, has_iptr: bool) -> Seconds:
    """Return CPU seconds of rtit from Python, of libipt, and, if `has_iptr`, of rtit and iptr from
    Rust, cold and warm, by the names of `entries.py` and `rust_seconds`.
    """
    ours = entries.ours(piece, 1)
    wanted = {name: ours[name] for name in ("edges", "block ids", "instructions", "packets")}
    others = entries.peers(piece)
    wanted |= {name: others[name] for name in (entries.REFERENCE, "libipt pt_pkt")}
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        found = {name: entry().cpu for name, entry in wanted.items()}
        if has_iptr:
            found |= rust_seconds(piece)
        for name, each in found.items():
            seconds.setdefault(name, []).append(each)
    return seconds


def rust_seconds(piece: entries.StreamPart) -> dict[str, float]:
    """Return CPU seconds of the first and second run of a new decoder of each kind."""
    found = {}
    command = peers.command_line("edges,rtit,iptr", piece.path, piece.path, 1, 1, piece.sections)
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in lines.splitlines():
        name, *times = line.split()
        if times[0] == "cannot:":
            raise RuntimeError(f"{name}: {line}")
        found[f"{name} cold"], found[f"{name} warm"] = int(times[1]) / 1e9, int(times[4]) / 1e9
    return found


def best_peer(seconds: Seconds, temperature: str) -> str:
    """Return the name of the fastest peer."""
    names = [f"iptr {temperature}", entries.REFERENCE]
    return min(names, key=lambda name: statistics.median(seconds[name]))


def decoding(folder: Path, rounds: int, scale: float) -> Group:
    commands = workloads.installed_programs(folder)
    plain, compressed = list(workloads.OPTIONS.values())[:2]
    with_iptr: dict[str, Seconds] = {}
    with_retc: dict[str, Seconds] = {}
    witnesses = []
    for program, command in commands.items():
        event, size = plain
        piece = workloads.record_stream_part(folder, command, event, int(size * scale))
        with_iptr[program] = measure_piece(piece, rounds, has_iptr=True)
        if program in LARGE_CODE:
            witnesses += witness_rows(program, piece)
        event, size = compressed
        piece = workloads.record_stream_part(folder, command, event, int(size * scale))
        with_retc[program] = measure_piece(piece, rounds, has_iptr=False)
    goals = []
    for program, seconds in with_iptr.items():
        limit = 1.5 if program in LARGE_CODE else 2
        cold = ratio(seconds, best_peer(seconds, "cold"), "edges cold")
        goals.append(Goal(f"edges over the best peer, cold: `{program}`", cold, limit, True))
    for program, seconds in with_iptr.items():
        peer = best_peer(seconds, "warm")
        warm = ratio(seconds, peer, "rtit warm")
        goals.append(Goal(f"bitmap over the best peer, warm: `{program}`", warm, 2, True))
    for program, seconds in with_iptr.items():
        again = ratio(seconds, "edges warm", "edges cold")
        goals.append(Goal(f"edges, second run by first: `{program}`", again, 1))
    for what, by_program, reference, limit in (
        ("edges over pt_blk, mean", with_iptr, entries.REFERENCE, 35),
        ("edges over pt_blk, mean, with RET compression", with_retc, entries.REFERENCE, 25),
        ("block ids over pt_blk, mean", with_iptr, entries.REFERENCE, 15),
        ("instructions over pt_blk, mean", with_iptr, entries.REFERENCE, 10),
        ("packets over pt_pkt, mean", with_iptr, "libipt pt_pkt", 4),
    ):
        name = what.partition(" over")[0]
        ratios = [ratio(seconds, reference, name) for seconds in by_program.values()]
        goals.append(Goal(what, workloads.geomean(ratios), limit, True))
    details = ["", "CPU milliseconds, without RET compression:", ""]
    names = list(next(iter(with_iptr.values())))
    details += report.table(
        ["", *(_short_name(name) for name in names)],
        [
            [program, *(milliseconds(seconds, name) for name in names)]
            for program, seconds in with_iptr.items()
        ],
    )
    details += ["", "Multiples of pt_blk (RETC: with RET compression):", ""]
    names = ["edges", "block ids", "instructions"]
    details += report.table(
        ["program", *names, *(f"{name}, RETC" for name in names)],
        [
            [
                program,
                *(
                    f"{ratio(by_program[program], entries.REFERENCE, name):.1f}"
                    for by_program in (with_iptr, with_retc)
                    for name in names
                ),
            ]
            for program in with_iptr
        ],
    )
    head = ["program", "decoder, new", "page faults", "instructions for each branch"]
    details += ["", "Without noise from other load (one run):", "", *report.table(head, witnesses)]
    return Group(goals, details)


def witness_rows(program: str, piece: entries.StreamPart) -> list[list[str]]:
    """Return rows of page faults and instructions of decoding with a new decoder, less those of the
    same process with no decoder. Instructions are of user mode, by valgrind if it is installed.
    """
    short = piece.path.with_name("short")
    short.write_bytes(piece.pt[: 4 << 10])  # the last run, of any trace

    def command(decoders: str) -> list[str | Path]:
        return peers.command_line(decoders, piece.path, short, 1, 0, piece.sections)

    def faults(decoders: str) -> int:
        return clock.process_usage(command(decoders)).page_faults

    branches = branch_count(piece)
    rows = []
    for name in ("edges", "rtit", "iptr"):
        counted = ""
        if shutil.which("valgrind"):
            instructions = counted_instructions(command(name)) - counted_instructions(
                command("none")
            )
            counted = f"{instructions / branches:.1f}"
        rows.append([program, name, f"{faults(name) - faults('none'):,}", counted])
    return rows


def branch_count(piece: entries.StreamPart) -> int:
    """Return the number of near branches and other transfers in a piece."""
    from rtit import _core

    flow = _core.StreamDecoder(piece.pt, piece.image().native, no_retcomp=True)
    return int(sum(flow.totals()["edge_count"]))


def counted_instructions(command: Sequence[str | Path]) -> int:
    """Return the instructions of a process in user mode."""
    words = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    ended = subprocess.run([*words, *command], capture_output=True, text=True, check=True)
    (line,) = [line for line in ended.stderr.splitlines() if "I   refs" in line]
    return int(line.rpartition(" ")[2].replace(",", ""))


def _short_name(name: str) -> str:
    if name.endswith(" warm"):
        return "warm"  # beside the same decoder, cold
    return name.removeprefix("libipt ").partition(",")[0].replace("instructions", "instr.")


# --- Two threads, and a whole stream ---


def threads(folder: Path, rounds: int, scale: float) -> Group:
    event, _ = next(iter(workloads.OPTIONS.values()))
    command = workloads.python_command(int(LONG_TIMES * scale))
    piece = workloads.record_stream_part(folder, command, event, int(LONG * scale))
    kinds = ("counts", "edges", "block ids", "rows")
    seconds: dict[str, list[float]] = {}
    one, two = entries.ours(piece, 1), entries.ours(piece, 2)
    for _ in range(rounds):
        for kind in kinds:
            for count, measure in ((1, one[kind]), (2, two[kind])):
                time = measure()
                seconds.setdefault(f"{kind} cpu {count}", []).append(time.cpu)
                seconds.setdefault(f"{kind} wall {count}", []).append(time.wall)
        for name, each in rust_seconds(piece).items():
            seconds.setdefault(name, []).append(each)
    limits = {
        "counts": (0.6, 1.1),
        "edges": (round(1 / 1.7, 2), None),
        "block ids": (round(1 / 1.5, 2), None),
        "rows": (round(1 / 1.5, 2), None),
    }
    goals = [
        Goal(
            "edges over the best peer, cold: `python3`, whole stream",
            ratio(seconds, "iptr cold", "edges cold"),
            2,
            True,
        )
    ]
    for kind in kinds:
        for what, limit in zip(("wall", "cpu"), limits[kind], strict=True):
            by_one = ratio(seconds, f"{kind} {what} 2", f"{kind} {what} 1")
            goals.append(Goal(f"{kind}, two threads by one, {what}", by_one, limit))
    rows = [[name, milliseconds(seconds, name)] for name in seconds]
    told = f"A stream of `python3` of {len(piece.pt) / 1e6:.0f} MB of PT."
    return Group(goals, ["", told, "", *report.table(["decoder", "ms"], rows)])


# --- Commands ---


def commands(folder: Path, rounds: int, scale: float) -> Group:
    """Measure commands by CPU time, and the start of gdb by wall time."""
    listing, queries, other, same, long, out = (folder / name for name in "lqoshx")
    recording.record(["/bin/ls", "-l", "/usr/bin"], listing)
    for path, factor in ((queries, 7919), (other, 7927)):
        recording.record(sql_command(int(20_000 * scale), factor), path)
    shutil.copy(queries, same)
    recording.record([run.workload(), str(int(GDB_TIMES * scale))], long)
    environment = {**os.environ, "HOME": str(folder)}
    lines: dict[str, list[str | Path]] = {
        "packets": [*RTIT, "packets", listing],
        "lint": [*RTIT, "lint", listing],
        "edges": [*RTIT, "edges", queries],
        "report": [*RTIT, "report", queries],
        "diff, equal": [*RTIT, "diff", queries, same],
        "diff, unequal": [*RTIT, "diff", queries, other],
        "callgrind": [*RTIT, "profile", "--for", "callgrind", "-o", out, queries],
    }
    if shutil.which("perf"):
        lines["perf script -D"] = ["perf", "script", "-f", "-D", "-i", listing]
    if shutil.which("gdb"):
        lines["gdb"] = [*RTIT, "gdb", "--batch", long]

    def usage(name: str) -> Callable[[], clock.ProcessUsage]:
        # diff and lint exit with 1 if they find something
        return lambda: clock.process_usage(lines[name], environment, accepted_statuses=(0, 1))

    found = clock.alternate(rounds, {name: usage(name) for name in lines})
    seconds = {name: [each.cpu for each in all_] for name, all_ in found.items()}
    wall = {name: [each.wall for each in all_] for name, all_ in found.items()}
    goals = [
        Goal(f"`{one}` over `{other}`, CPU", ratio(seconds, one, other), limit)
        for one, other, limit in (
            ("packets", "perf script -D", 1),
            ("lint", "perf script -D", 2),
            ("diff, equal", "edges", 1),
            ("diff, unequal", "edges", 3),
            ("callgrind", "report", 4),
        )
        if other in seconds
    ]
    if "gdb" in wall:
        begin = statistics.median(wall["gdb"])
        goals.append(Goal("start of `gdb`, wall", begin, 1, unit=" s"))
    sizes = [path.stat().st_size / 1e6 for path in (listing, queries, long)]
    told = "Recordings: `ls` {:.1f} MB, `sqlite3` {:.1f} MB, for gdb {:.0f} MB.".format(*sizes)
    rows = [[name, milliseconds(seconds, name), milliseconds(wall, name)] for name in lines]
    return Group(goals, ["", told, "", *report.table(["command", "CPU ms", "wall ms"], rows)])


def sql_command(rows: int, factor: int) -> list[str | Path]:
    text = workloads.SQL.replace("60000", str(rows)).replace("7919", str(factor))
    return ["/usr/bin/sqlite3", ":memory:", text]


# --- Recording and counting ---


def recordings(folder: Path, rounds: int, scale: float) -> Group:
    from rtit.capture.qemu.installation import find_qemu

    found = find_qemu()
    if isinstance(found, str):
        return Group([], ["", f"Without QEMU: {found}"])
    qemu, out = found.qemu, folder / "recorded"
    children = int(CHILDREN * scale)
    text = folder / "text"
    text.write_bytes(b"".join(b"line %d of a file\n" % (i * i) for i in range(int(8e5 * scale))))
    gzip: list[str | Path] = ["/bin/gzip", "-kfc", text]
    ls: list[str | Path] = ["/bin/ls", "-l", "/usr/bin"]
    shell: dict[str, dict[str, list[str | Path]]] = {}
    for which, count in (("shell", children), ("shell without children", 0)):
        names = " ".join(map(str, range(count)))
        shell[which] = {
            "qemu": [qemu, "/bin/sh", "-c", f"for i in {names}; do {qemu} /bin/true; done"],
            "record": recording.recorder(
                ["/bin/sh", "-c", f"for i in {names}; do /bin/true; done"], out, "qemu"
            ),
        }
    lines = {
        f"{which} {how}": words for which, each in shell.items() for how, words in each.items()
    }
    lines |= {
        "gzip qemu": [qemu, *gzip],
        "gzip record": recording.recorder(gzip, out, "qemu"),
        "gzip stat": [*RTIT, "stat", "-o", os.devnull, "--", *gzip],
        "ls qemu": [qemu, *ls],
        "ls record": recording.recorder(ls, out, "qemu"),
    }
    usages = clock.alternate(
        rounds,
        {name: functools.partial(clock.process_usage, words) for name, words in lines.items()},
    )
    cpu = {name: [each.cpu for each in all_] for name, all_ in usages.items()}
    wall = {name: [each.wall for each in all_] for name, all_ in usages.items()}
    added = statistics.median(
        (recorded - recorded_none) - (plain - plain_none)
        for recorded, recorded_none, plain, plain_none in zip(
            cpu["shell record"],
            cpu["shell without children record"],
            cpu["shell qemu"],
            cpu["shell without children qemu"],
            strict=True,
        )
    )
    goals = [
        Goal("record over QEMU, `gzip`, wall", ratio(wall, "gzip record", "gzip qemu"), 2),
        Goal("record over QEMU, `ls`, wall", ratio(wall, "ls record", "ls qemu"), 2.5),
        Goal("record: each child, beside QEMU's CPU", added / children * 1e3, 10, unit=" ms"),
        Goal("stat over QEMU, `gzip`, wall", ratio(wall, "gzip stat", "gzip qemu"), 1.5),
    ]
    rows = [[name, milliseconds(cpu, name), milliseconds(wall, name)] for name in lines]
    told = f"The shell has {children} children."
    return Group(goals, ["", told, "", *report.table(["command", "CPU ms", "wall ms"], rows)])


GROUPS: dict[str, Callable[[Path, int, float], Group]] = {
    "decoding": decoding,
    "threads": threads,
    "commands": commands,
    "recording": recordings,
}


def main() -> None:
    """Measure, print, and save the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--only", choices=GROUPS, metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    load = clock.load()
    wanted = [arguments.only] if arguments.only else list(GROUPS)
    groups = {}
    for name in wanted:
        with tempfile.TemporaryDirectory(prefix="rtit-bench-") as folder:
            groups[name] = GROUPS[name](Path(folder), arguments.rounds, arguments.scale)
        print(f"{name} measured", file=sys.stderr)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    head = ["figure", "goal", "measured", "reached"]
    lines = [
        f"# Goals of speed, {today}",
        "",
        f"{clock.conditions(load)} Medians of {arguments.rounds} rounds; all sides of a row are "
        "measured in each round. Decoding: new decoders of the first 6 MB of each stream (2.5 MB "
        "with RET compression), by CPU time. Cold is the first run of a decoder, warm its second "
        "run. `edges` are exact totals, `rtit` and `iptr` bitmaps of 64 KB.",
        "",
        *report.table(head, [goal.cells() for group in groups.values() for goal in group.goals]),
    ]
    for name, group in groups.items():
        lines += ["", f"## {name.capitalize()}", *group.details]
    text = report.join_lines(lines)
    print(text, end="")
    if not arguments.only and arguments.scale == 1.0:
        (BENCH / "results" / f"{today}-goals.md").write_text(text)


if __name__ == "__main__":
    main()
