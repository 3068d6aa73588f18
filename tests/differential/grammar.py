"""Compares rtit's scanner with libipt on damaged streams from the packet grammar.

To write grammar.txt: `PYTHONPATH=tests python -m differential.grammar 1000000`.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from differential.oracles.libipt import compiled_with_libipt

ROOT = Path(__file__).resolve().parent.parent.parent
RESULT = Path(__file__).with_suffix(".txt")

_UNKNOWN_PACKET = "libipt 2.0.5 does not know the packet (33.4.2.26 to 33.4.2.30, and TRIG)"
_UNKNOWN_OPCODE = "error unknown opcode"
_PSB_RUN = "libipt reads a PSB where a run of 02H 82H begins, and again where it ends"
_PSB_WITHIN_PACKET = (
    "libipt takes a packet within which a PSB begins, and then goes back for the PSB"
)

EXPECTED_DIFFERENCES = {
    **{
        (name, _UNKNOWN_OPCODE): _UNKNOWN_PACKET
        for name in ("BBP", "BEP", "CFE", "EVD", "TRIG", "truncated")
    },
    ("TMA", "error unknown packet"): "libipt refuses reserved bits of TMA (33.4.2: ignored)",
    ("PWRE", "another second value"): "libipt reads PWRE.HW from another bit than Table 33-43 has",
    ("reserved", "a packet"): "libipt takes a MODE.Exec with CS.L and CS.D both 1 (Table 33-26)",
    ("broken PSB", "a packet"): _PSB_RUN,
    (
        "broken PSB",
        "error reached end of trace stream",
    ): "libipt does not look at a PSB that is cut",
    ("long CYC", "error reached end of trace stream"): "libipt asks for a tenth byte first",
    ("broken off", "a packet"): _PSB_WITHIN_PACKET,
}
"""Reason of a difference, by what rtit and libipt read: a packet, or an error."""


class CannotCompareError(Exception):
    """A tool to build either side is missing."""


@dataclass(frozen=True)
class Difference:
    """A difference: `number` is the first stream that has it, `data` the stream's bytes at
    `offset`.
    """

    ours: str
    theirs: str
    count: int
    number: int
    offset: int
    data: str


@dataclass(frozen=True)
class Comparison:
    """Counts of streams, of equal packets, and of offsets where both find no packet
    (`refused`).
    """

    streams: int
    packets: int
    refused: int
    differences: list[Difference]


def compare_streams(first: int, count: int) -> Comparison:
    """Compare `count` streams from number `first` on. Raises CannotCompareError."""
    reader = compiled_with_libipt("ipt_compare")
    cargo = shutil.which("cargo")
    if cargo is None:
        raise CannotCompareError("cargo is not installed")
    command = ["run", "--profile", "tests", "--quiet", "-p", "rtit-packet", "--example", "grammar"]
    streams = [str(first), str(count)]
    with (
        subprocess.Popen(
            [cargo, *command, "--", *streams], cwd=ROOT, stdout=subprocess.PIPE
        ) as writer,
        subprocess.Popen([reader], stdin=writer.stdout, stdout=subprocess.PIPE, text=True) as other,
    ):
        head, *rows = other.communicate()[0].splitlines()
    if writer.returncode or other.returncode:
        raise RuntimeError(f"exit codes {writer.returncode} and {other.returncode}")
    stream_count, packets, refused = map(int, head.split()[1:])
    differences = []
    for row in rows:
        ours, theirs, times, number, offset, data = row.split("|")
        differences.append(
            Difference(ours, theirs, int(times), first + int(number), int(offset), data)
        )
    return Comparison(stream_count, packets, refused, differences)


def main() -> None:
    found = compare_streams(0, int(sys.argv[1]))
    version = subprocess.run(
        ["pkg-config", "--modversion", "libipt"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, libipt {version or '2.0.5'}",
        f"{found.streams:,} streams, {found.packets:,} packets with the same fields, "
        f"{found.refused:,} offsets where neither finds a packet",
        "",
        "ours, libipt's, how often, reason; one of them",
    ]
    for each in sorted(found.differences, key=lambda each: -each.count):
        reason = EXPECTED_DIFFERENCES.get((each.ours, each.theirs), "NOT LISTED")
        lines.append(f"{each.ours} | {each.theirs} | {each.count:,} | {reason}")
        lines.append(f"    stream {each.number} offset {each.offset}: {each.data}")
    RESULT.write_text("\n".join(lines) + "\n")
    print(RESULT.read_text(), end="")


if __name__ == "__main__":
    main()
