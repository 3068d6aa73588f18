"""Checks of every run: the decoded path is the executed path, and damage adds no false path.

To run more seeds by hand: `PYTHONPATH=tests python -m flow.loop.checks FIRST LAST`.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

from flow.loop.damage import Damaged, damage_stream
from flow.loop.decoded import decoded, space
from flow.loop.run import Run
from rtit.packets import PSB, find_psb

STEPS = (60, 300, 300, 1200)
BEGINNING = "before the first PSB at offset 0x0"


def check_run(run: Run) -> None:
    """Assert that the decoded path is the executed one from the first PSB on, also in the
    ledger.
    """
    ips, ledger = decoded(run, run.stream, space(run))
    missing = len(run.truth) - len(ips)
    assert missing >= 0
    assert ips == run.truth[missing:]
    wrong = [row for row in ledger if row[2] != "exact"]
    if run.stream.startswith(PSB) or not wrong:
        assert (missing, wrong) == (0, [])
    else:
        assert missing <= (len(run.truth) if run.begun is None else run.begun)
        assert [row[4] for row in wrong] == [BEGINNING]


def check_damage(run: Run, random: Random) -> Damaged:
    """Assert that all instructions of whole packets before the damage and after the next PSB are
    found.

    Between them no decoder can be exact: an inverted result is a result. If the rest of the stream
    is missing, no branch may be added, either.
    """
    code = space(run)
    whole, _ = decoded(run, run.stream, code)
    case = damage_stream(run.stream, random)
    ips, ledger = decoded(run, case.stream, code)
    _accounts(ledger, len(case.stream))
    before, _ = decoded(run, run.stream[: case.before], code)
    contradicted = any("names a mode" in (row[4] or "") for row in ledger)
    after = _from_psb(run, case, contradicted, code)
    assert ips[: len(before)] == before == whole[: len(before)]
    assert ips[len(ips) - len(after) :] == after == whole[len(whole) - len(after) :]
    between = ips[len(before) : len(ips) - len(after)]
    if case.how == "cut":
        assert between == []
    elif case.how == "to a PSB" and not contradicted:
        # The code determines the path to the IP of the PSB+.
        assert {run.program[ip].kind for ip in between} <= {"other", "jump", "call"}
    return case


def _accounts(ledger: list[Any], size: int) -> None:
    """Assert that every byte is in one span, and that a span without bytes has an error."""
    ends = [0, *(row[1] for row in ledger)]
    assert [row[0] for row in ledger] == ends[:-1]
    assert ends[-1] == size
    assert all(row[0] < row[1] or row[3] for row in ledger)


def _from_psb(run: Run, case: Damaged, contradicted: bool, code: Any) -> list[int]:
    """Return the path decoded from the bytes after the damage alone.

    If the PSB+ and the state before it disagree on the mode, either may be damaged: then return the
    path of the bytes after the PSB+.
    """
    start = len(case.stream) - case.after
    if contradicted:
        start = find_psb(case.stream, start + 1) or len(case.stream)
    return decoded(run, case.stream[start:], code)[0] if case.after else []


def main() -> None:
    first, last = map(int, sys.argv[1:])
    instructions = 0
    for seed in range(first, last):
        random = Random(seed)
        run = Run(seed, random.choice(STEPS))
        try:
            check_run(run)
            for _ in range(5):
                check_damage(run, random)
        except AssertionError:
            print(f"seed {seed}")
            raise
        instructions += len(run.truth)
    print(f"{last - first:,} runs, {instructions:,} instructions, 5 damages each")


if __name__ == "__main__":
    main()
