"""The events of libipt's published cases equal its expectations (beside the addresses)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtit.image import Image
from rtit.trace import Settings, Stream
from rtit.trace.events import describe_event
from support.streams import ChunkedBytes

# From the expectations of the cases. Additions by hand, from the packets and the code: address
# and reason of the end of tracing, the target of an event, CBRs, and the state in a PSB+. libipt
# 2.3 reports an interrupt with a CFE twice.
CASES = {
    "bdm70-psb_fup-tip_pge": [
        "transaction step=inside at=0x100000",
        "enabled ip=0x100000",
        "disabled at=0x100001 why=event_or_TraceEn",
    ],
    "direct_call-tip_pgd_noip-syscall": ["disabled at=0x100006 why=context"],
    "exstop_ip-tip_pgd": ["paused at=0x1001", "disabled at=0x1001 why=event_or_TraceEn"],
    "fup-tip": [
        "enabled ip=0x1000",
        "interrupt at=0x1002 to=0x1003",
        "disabled at=0x1004 why=event_or_TraceEn",
    ],
    "mwait-pwre-exstop_ip-pwre-pwrx": [
        "sleep at=0x1001 state=C1 sub_state=15 hints=80 extensions=1",
        "sleep at=0x1001 state=C6 sub_state=15",
        "wake last=C6 deepest=C6 reasons=interrupt since=0",
        "disabled at=0x1005 why=event_or_TraceEn",
    ],
    "ovf-mnt-fup": [
        "overflow until=0 ip=0x1001",
        "maintenance payload=0xa000",
        "disabled at=0x1002 why=event_or_TraceEn",
    ],
    "pip-far_call": ["paging cr3=0xcdcdc0", "disabled at=0x100005 why=event_or_TraceEn"],
    "psb-stop": ["stopped"],
    "ptet-init-sipi": [
        "INIT at=0x100001",
        "disabled at=0x100001 why=context",
        "SIPI vector=206",
        "enabled ip=0x100002 why=context",
        "disabled at=0x100003 why=event_or_TraceEn",
    ],
    "ptet-int-iret-cpl_0": [
        "interrupt vector=14 cr2=0xf00baa",
        "enabled ip=0x100007",
        "IRET at=0x100007",
        "disabled at=0x100007 why=context",
        "SWINTR vector=128",
        "enabled ip=0x100009 why=context",
        "IRET at=0x100009",
        "disabled at=0x100009 why=context",
    ],
    "ptet-mode_exec-if": [
        "mode at=0x1000 bits=64",
        "enabled ip=0x1000",
        "mode at=0x1002 bits=64 interrupts",
        "mode at=0x1004 bits=64",
        "disabled at=0x1004 why=event_or_TraceEn",
    ],
    "ptet-uint-uiret": [
        "interrupt at=0x100001 to=0x100005 vector=4 user",
        "UIRET at=0x100005",
        "interrupt at=0x100002 to=0x10000a vector=5 user",
        "UIRET at=0x100004",
        "disabled at=0x100004 why=context",
    ],
    "ptet-vmexit-vmentry": [
        "VM exit at=0x100001 to=0x100008 vector=14 reason=0 qualification=0xf00baa",
        "paging cr3=0xf00",
        "VMENTRY at=0x100008",
        "paging cr3=0xb00 nonroot",
        "VM exit at=0x100004 to=0x10000c reason=10",
        "paging cr3=0xf00",
        "VMENTRY at=0x10000c",
        "paging cr3=0xb00 nonroot",
        "disabled at=0x100007 why=event_or_TraceEn",
    ],
    "ptw-fup": ["ptwrite at=0x100000 value=0xabcd", "ptwrite at=0x100001 value=0xef09"],
    "ptxed-resync-nomap-tip": [
        "lost kind=code_not_found value=0x100100",
        "resumed ip=0x100200",
        "lost kind=code_not_found value=0x100200",
        "resumed ip=0x100005",
        "disabled at=0x100006 why=event_or_TraceEn",
    ],
    "tip_pgd-indirect_jump": ["disabled at=0x100003 to=0x100006 why=filter"],
    # libipt gives no IP here; the last MODE.TSX before TIP.PGE has the state at its IP (33.4.2.8)
    "tip_pge-tsx_abort-tip_pgd": [
        "transaction step=begin at=0x100000",
        "enabled ip=0x100000",
        "transaction step=abort at=0x100000 to=0x100001",
        "disabled at=0x100000 to=0x100001 why=filter",
    ],
    "tnt-trig": [
        "trigger at=0x1002 triggers=26 count=0",
        "trigger at=0x1008 triggers=161 count=1",
        "disabled at=0x1008 why=event_or_TraceEn",
    ],
    "tsx-commit": [
        "transaction step=begin at=0x100001",
        "transaction step=commit at=0x100002",
        "disabled at=0x100003 why=event_or_TraceEn",
    ],
    "vmcs-far_call": ["VMCS pointer=0xcdcdc000", "disabled at=0x100005 why=event_or_TraceEn"],
}


@pytest.fixture(scope="session")
def cases(traces: Path) -> Path:
    path = traces / "libipt-cases"
    if not path.is_dir():
        pytest.skip("libipt's cases are not beside the repository")
    return path


@pytest.mark.parametrize("name", CASES)
def test_events_equal_those_of_libipt(cases: Path, name: str) -> None:
    (case,) = (
        each for each in json.loads((cases / "index.json").read_text()) if each["name"] == name
    )
    image = Image().add_file(cases / f"{name}.bin", int(case["image_base"], 16))
    stream = Stream(ChunkedBytes((cases / f"{name}.pt").read_bytes()), image, Settings())
    assert [describe_event(each) for each in stream.events()] == CASES[name]
