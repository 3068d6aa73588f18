"""Results as Markdown."""

from __future__ import annotations

from typing import Any


def markdown(result: dict[str, Any]) -> str:
    machine = result["machine"]
    lines = [
        f"# {result['date']}",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"Python {machine['python']}; medians of {result['repetitions']}.",
    ]
    if result["recording"]:
        lines += ["", "## Recording (wall time)", ""]
        lines += table(
            [
                "program",
                "back end",
                "instructions",
                "PT B/1000",
                "native ms",
                "plain QEMU s",
                "recorded s",
                "instructions/s",
                "slowdown",
            ],
            [
                [
                    row["what"],
                    row["backend"],
                    f"{row['instructions']:,}",
                    f"{1000 * row['bytes'] / row['instructions']:.1f}",
                    f"{1000 * row['native_seconds']:.2f}",
                    f"{row['qemu_seconds']:.2f}" if row["qemu_seconds"] else "",
                    f"{row['seconds']:.2f}",
                    f"{row['instructions_per_second']:,.0f}",
                    f"{row['slowdown']:,.0f}x",
                ]
                for row in result["recording"]
            ],
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
    return "\n".join(lines) + "\n"


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


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
