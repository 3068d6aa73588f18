"""Expected paths of the scenarios: those of the programs that their events imply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from rtit.scenario import LIBRARY, load
from scenario.program import NoProgramError, Program, Segment, program

NO_PROGRAM: Mapping[str, tuple[str, ...]] = {
    "nothing leads from": (
        # A canonical address is far below the one that faults.
        "ip_not_canonical_full",
        # The VMCS has the AEP, and not the address in the enclave.
        "enclave_vm_exit",
    ),
    # Two branches at the address where the range ends.
    "other code is at": ("ip_filter_sequential_at_boundary",),
    # test_code.py has their path.
    "the program is given": ("table_33_19_deferral", "table_33_19_no_deferral"),
}
"""Scenarios whose events no program can cause, by reason."""

UNTOLD: Mapping[str, set[str]] = {
    "which way conditional branches went is not in a trace with DisTNT": {
        "dis_tnt_keeps_the_rest",
        "tnt_disabled",
    },
    "that an authenticated code module ran is not in the trace": {
        "acm",
        "acm_clocks",
        "acm_cyc",
        "acm_cyc_silent",
        "acm_silent",
    },
    "that a MOV CR4 leaves the context is not in the code": {"cr3_filter_pae_begins"},
    "another reading of a table, by a parameter: the packets do not say where it went": {
        "table_33_55_row_26_27_literal",
        "table_33_56_row_06_eenter_literal",
        "trace_stop_suppressed_target",
    },
}
"""Scenarios whose trace does not determine the path, by reason."""

Decode = Callable[[Program], tuple[list[int], bool]]
"""Result of a decoder: the addresses, and whether it lost only data that an OVF reports."""


@cache
def programs() -> tuple[dict[str, Program], dict[str, str]]:
    """Return the program of each shipped scenario, or the reason why there is none."""
    found, without = {}, {}
    for path in sorted(LIBRARY.glob("*.scenario")):
        try:
            found[path.stem] = program(load(path))
        except NoProgramError as error:
            without[path.stem] = str(error)
    return found, without


def matches_segments(segments: Sequence[Segment], ips: Sequence[int]) -> bool:
    """Return whether `ips` are the segments, each at least up to the last confirmed instruction."""
    if not segments:
        return not ips
    first, rest = segments[0], segments[1:]
    most = min(len(first.ips), len(ips))
    return any(
        list(ips[:size]) == first.ips[:size] and matches_segments(rest, ips[size:])
        for size in range(most, first.least - 1, -1)
    )


def deviating_scenarios(decode: Decode, names: Iterable[str]) -> set[str]:
    """Return the scenarios among `names` whose path a decoder misses or loses."""
    found, _ = programs()
    wrong = set()
    for name in names:
        ips, whole = decode(found[name])
        if not whole or not matches_segments(found[name].segments, ips):
            wrong.add(name)
    return wrong
