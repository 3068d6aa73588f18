"""Results as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any


def join_lines(lines: Iterable[str]) -> str:
    """Return `lines` as text; prose, but no table, is wrapped at 120 columns."""
    wrapped = (
        line if line.startswith("|") else textwrap.fill(line, 120, break_on_hyphens=False)
        for line in lines
    )
    return "\n".join(wrapped) + "\n"


def markdown(result: dict[str, Any]) -> str:
    machine = result["machine"]
    lines = [
        f"# {result['date']}",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"Python {machine['python']}; medians of {result['repetitions']}.",
    ]
    begin, end = result["load"]
    if begin > machine["cores"] / 4:
        lines += [
            "",
            f"**The machine was busy with other work**: load {begin:.1f} at the "
            f"beginning, {end:.1f} at the end. Compare columns of one row only.",
        ]
    if result["packetizing"]:
        lines += ["", "## Packetizing alone (CPU time)", ""]
        lines += table(
            ["packetizer, options", "million near branches/s"],
            [
                [row["what"], f"{row['branches_per_second'] / 1e6:.2f}"]
                for row in result["packetizing"]
            ],
        )
    if result["recording"]:
        lines += ["", "## Recording (wall time)", ""]
        lines += [
            "QEMU: without a plugin; empty: with a plugin that does nothing in its block callback.",
            "",
        ]
        head = ["program", "back end", "instr.", "PT B/1000", "native s", "QEMU s"]
        head += ["empty s", "rec. s", "of QEMU", "of native", "M instr./s"]
        lines += table(head, [recorded(row) for row in result["recording"]])
    if result.get("counting"):
        lines += ["", "## Counting what is executed (CPU time, all processes)", ""]
        head = ["program", "instructions", "native s", "QEMU s", "empty s"]
        head += ["`rtit stat` s", "of QEMU", "cachegrind s", "callgrind s"]
        lines += table(head, [counted(row) for row in result["counting"]])
    if found := result.get("profiles"):
        lines += ["", "## From a recording to counts (CPU time, all processes)", ""]
        lines += [
            f"{found['bytes'] / 1e6:.1f} MB of PT, {found['instructions']:,} instructions.",
            "",
        ]
        lines += table(
            ["way", "what it counts", "s", "of `rtit edges`"],
            [counts(row) for row in found["rows"]],
        )
    if found := result["decoding"]:
        lines += ["", "## Decoding (CPU time)", ""]
        lines += [
            f"{found['bytes'] / 1e6:.1f} MB of PT, {found['instructions']:,} instructions "
            f"({found['copies']} copies of one recording).",
            "",
        ]
        lines += table(
            ["decoder", "s", "MB of PT/s", "M instructions/s", "rtit is faster by", "errors"],
            [decoder(row) for row in found["rows"]],
        )
    if found := result.get("short"):
        lines += ["", "## One short trace (CPU time)", ""]
        lines += [
            f"{found['bytes'] / 1024:.1f} KB of PT, {found['instructions']:,} instructions; first: "
            "by a decoder that knows nothing of the code, again: by one that has seen it (libipt: "
            "by another on the same image and section cache).",
            "",
        ]
        lines += table(["decoder", "first, us", "again, us"], [timed(row) for row in found["rows"]])
    if found := result.get("corpus"):
        lines += ["", "## A corpus of short traces", ""]
        lines += [
            f"{found['traces']:,} traces, {found['bytes'] / 1e6:,.0f} MB of PT, "
            f"{found['distinct']:,} of them distinct; {found['edges']:,} edges, "
            f"{found['covering']:,} traces in the covering set. Of one: CPU time of one process "
            "as a share of the wall time of all processes, and of their CPU time. Memory: growth "
            "of the peak.",
            "",
        ]
        rows = [corpus_row(row, found["rows"][0]["cpu"]) for row in found["rows"]]
        head = ["processes", "s", "CPU s", "of one, wall", "of one, CPU", "MB of memory"]
        lines += table(head, rows)
    if found := result.get("opening"):
        lines += ["", "## Opening a large recording (a process of its own for each)", ""]
        lines += [
            f"{found['bytes'] / 1e6:,.0f} MB, {found['records']:,} records, nothing of it in "
            "memory; read: what came from the disk; memory: by how much the peak grew, pages of "
            "the file among it.",
            "",
        ]
        rows = [
            [row["what"], f"{row['wall']:.1f}", f"{row['cpu']:.1f}"]
            + [f"{row[name] / 1e6:,.0f}" for name in ("read", "memory")]
            for row in found["rows"]
        ]
        lines += table(["", "s", "CPU s", "MB read", "MB of memory"], rows)
    if row := result.get("boot"):
        plain = row["qemu_seconds"]
        lines += ["", "## Recording the boot of a Linux kernel (CPU time, all processes)", ""]
        head = ["instructions", "PT B/1000", "QEMU s", "empty s", "rec. s", "of QEMU"]
        cells = [f"{row['instructions']:,}", f"{1000 * row['bytes'] / row['instructions']:.1f}"]
        cells += [f"{row[name]:.1f}" for name in ("qemu_seconds", "empty_seconds", "seconds")]
        lines += table(head, [[*cells, f"{row['seconds'] / plain:.2f}x"]])
    return join_lines(lines)


def timed(row: dict[str, Any]) -> list[str]:
    seconds = (row["first"], row["again"])
    return [row["what"], *("" if each is None else f"{each * 1e6:,.0f}" for each in seconds)]


def counts(row: dict[str, Any]) -> list[str]:
    seconds, ratio = row["seconds"], row["ratio"]
    measured = ["", ""] if seconds is None else [f"{seconds:.3f}", f"{ratio:.1f}x"]
    return [row["what"], row["counts"], *measured]


def counted(row: dict[str, Any]) -> list[str]:
    plain, empty = row["qemu"], row["empty"]
    return [
        row["what"],
        f"{row['instructions']:,}",
        f"{row['native']:.3f}",
        f"{plain:.3f}",
        f"{empty / plain:.2f}x" if empty else "",
        f"{row['stat']:.3f}",
        f"{row['stat'] / plain:.2f}x",
        *("" if row[name] is None else f"{row[name]:.3f}" for name in ("cachegrind", "callgrind")),
    ]


def recorded(row: dict[str, Any]) -> list[str]:
    plain, empty = row["qemu_seconds"], row["empty_seconds"]
    return [
        row["what"],
        row["backend"],
        f"{row['instructions']:,}",
        f"{1000 * row['bytes'] / row['instructions']:.1f}",
        f"{row['native_seconds']:.4f}",
        f"{plain:.3f}" if plain else "",
        f"{empty / plain:.2f}x" if plain and empty else "",
        f"{row['seconds']:.3f}",
        f"{row['slowdown_of_qemu']:.2f}x" if plain else "",
        f"{row['slowdown']:,.0f}x",
        f"{row['instructions_per_second'] / 1e6:,.2f}",
    ]


def decoder(row: dict[str, Any]) -> list[str]:
    speed = row["instructions_per_second"]
    return [
        row["what"],
        f"{row['seconds']:.3f}",
        f"{row['megabytes_per_second']:.1f}",
        "" if speed is None else f"{speed / 1e6:.1f}",
        f"{row['ratio']:.1f}x",
        str(row.get("errors", "")),
    ]


def corpus_row(row: dict[str, Any], single: float) -> list[str]:
    shares = single / (row["wall"] * row["processes"]), single / row["cpu"]
    seconds = f"{row['wall']:.1f}", f"{row['cpu']:.1f}"
    memory = f"{row['memory'] / 1e6:,.0f}"
    return [str(row["processes"]), *seconds, *(f"{each:.2f}" for each in shares), memory]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
