"""The cases of libipt decode to the instructions that its instruction decoder reports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import rtit
from rtit.trace import Span, Stream

# Cases where only one of rtit and libipt stops, on purpose: case -> the classes of our errors.
DIFFERENT = {
    # only the number of instructions is listed
    "linear-fup-tip_pgd": [],
    # libipt continues after the stream to the end of the code; we report what packets confirm
    "pip-pip_mov_cr3-fail": [],
    # it reports instructions up to where trace and code disagree; as the code may be wrong, we
    # report none of them
    "ptxed-resync-bad_query-fup-tip": ["trace and code disagree"],
    "ptxed-resync-bad_query-tip": ["trace and code disagree"],
}

# The same instructions, and our ledger has an error: an overflow, code that is not there.
ERRORS = {
    "mtc-ovf_keep-cyc": ["loss reported by hardware"],
    "mwait-pwre-exstop_ip-ovf": ["loss reported by hardware"],
    "mwait-pwre-ovf": ["loss reported by hardware"],
    "ovf": ["loss reported by hardware"],
    "ovf-mnt-fup": ["loss reported by hardware"],
    "ovf-timing-fup": ["loss reported by hardware"],
    "ovf-timing-tip_pge": ["loss reported by hardware"],
    "ptxed-resync-nomap-fup-tip": ["code not found"] * 2,
    "ptxed-resync-nomap-mode_exec-fup": ["code not found"],
    "ptxed-resync-nomap-mode_tsx-fup-tip": ["code not found"],
    "ptxed-resync-nomap-mode_tsx-tip_pgd": ["code not found"] * 3,
    "ptxed-resync-nomap-tip": ["code not found"] * 2,
    # a TNT comes before the second TIP, which may be deferred
    "ptxed-resync-nomap-tip_pgd": ["code not found"],
    "ptxed-resync-nomap-tip_pge": ["code not found"] * 2,
    "ptxed-resync-psb-bad_status-psb": ["trace and code disagree"],
    "ptet-evd_vmxq-cfe_intr": ["trace and code disagree"],
    "skd010-mode_tsx-fup": ["loss reported by hardware"],
    "skd010-psb": ["loss reported by hardware"],
}


@pytest.fixture(scope="module")
def cases(traces: Path) -> dict[str, dict[str, Any]]:
    index = json.loads((traces / "libipt-cases" / "index.json").read_text())
    return {case["name"]: case for case in index}


def names() -> list[str]:
    folder = Path(__file__).resolve().parents[2].parent / "shared" / "traces" / "libipt-cases"
    return sorted(path.name.partition(".")[0] for path in folder.glob("*.instructions.txt"))


def settings(run: dict[str, Any], cpu: str | None) -> dict[str, Any]:
    """Return the settings of a run of libipt that concern decoding."""
    options = dict(zip(run["options"], run["options"][1:], strict=False))
    found: dict[str, Any] = {}
    if cpu is not None:
        family, model = cpu.split("/")
        found["cpu"] = (int(family), int(model), 0)
    if "--filter:addr0_cfg" in options:
        found["ranges"] = [tuple(int(options[f"--filter:addr0_{end}"], 16) for end in "ab")]
    return found


def decode(folder: Path, case: dict[str, Any], **settings: Any) -> Stream:
    image = rtit.Image().add_file(folder / f"{case['name']}.bin", int(case["image_base"], 16))
    trace = rtit.decode((folder / f"{case['name']}.pt").read_bytes(), image, **settings)
    return trace.streams[0]


def ips_of(stream: Stream) -> list[int]:
    return [int(ip) for part in stream.instructions() for ip in part.ip]


def listed_ips(path: Path) -> list[int]:
    lines = path.read_text().splitlines()
    # "? " marks instructions in a transaction
    return [int(line[-16:], 16) for line in lines if re.fullmatch(r"(\? )?[0-9a-f]{16}", line)]


@pytest.mark.spec("DEC-003", "PGE-006", "PGD-007", "PGD-009", "FUP-005")
@pytest.mark.parametrize("name", names())
def test_instructions_equal_those_of_libipt(
    name: str, traces: Path, cases: dict[str, dict[str, Any]]
) -> None:
    folder = traces / "libipt-cases"
    case = cases[name]
    run = next(run for run in case["runs"] if run["level"] == "instructions")
    for cpu in run["cpus"]:
        stream = decode(folder, case, **settings(run, cpu))
        ips = ips_of(stream)
        classes = [span.cause.label for span in stream.ledger() if span.cause is not None]
        if name in DIFFERENT:
            assert classes == DIFFERENT[name]
            continue
        assert ips == listed_ips(folder / run["expected"])
        assert classes == ERRORS.get(name, [])


def test_straight_code_of_100000_instructions_decodes_as_by_libipt(
    traces: Path, cases: dict[str, dict[str, Any]]
) -> None:
    stream = decode(traces / "libipt-cases", cases["linear-fup-tip_pgd"])
    assert ips_of(stream) == list(range(0x100000, 0x100000 + 100000))
    assert list(stream.ledger()) == [Span(0, 0x21, "exact", "")]
