"""What must hold of every run: decoded is what was executed, and damage makes nothing up.

By hand, for as long as one likes: `PYTHONPATH=tests python -m flow.loop.checks FIRST LAST` (seeds).
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

from flow.loop.damage import Damaged, damaged
from flow.loop.decoded import decoded, space
from flow.loop.run import Run
from rtit.packets import PSB, find_psb

STEPS = (60, 300, 300, 1200)
BEGINNING = "before the first PSB at offset 0x0"


def check_run(run: Run) -> None:
    """Decoded is what was executed, from the first PSB on, and the ledger says so."""
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
    """What whole packets told before the damage is found, and nothing else at that place; and all
    from the next PSB on. In between no decoder can tell: a result that is turned round is a
    result. Only where the rest is simply not there, no branch may be made up, either.
    """
    code = space(run)
    whole, _ = decoded(run, run.stream, code)
    case = damaged(run.stream, random)
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
        # The way to the IP of the PSB+ is told by the code.
        assert {run.program[ip].kind for ip in between} <= {"other", "jump", "call"}
    return case


def _accounts(ledger: list[Any], size: int) -> None:
    """Every byte is in one span; one without bytes has an error to tell."""
    ends = [0, *(row[1] for row in ledger)]
    assert [row[0] for row in ledger] == ends[:-1]
    assert ends[-1] == size
    assert all(row[0] < row[1] or row[3] for row in ledger)


def _from_psb(run: Run, case: Damaged, contradicted: bool, code: Any) -> list[int]:
    """What is decoded of the bytes after the damage by themselves. If the PSB+ and what was before
    contradict each other about the mode, either may be the damaged one: then of those after it.
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
