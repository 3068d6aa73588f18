"""Every event that libipt prints for its published cases equals ours, in libipt's format."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rtit
from rtit.trace import Event, EventKind, Stream
from rtit.trace.events import event_classes as of

FOLDER = Path(__file__).resolve().parents[3].parent / "shared" / "traces" / "libipt-cases"

NOT_EVENTS = re.compile(r".*\berror\b.*|block|end of trace|tick")
"""Lines in brackets that are no events. libipt prints a tick for each timing packet; our rows have
times in a column.
"""

# Events that only one of the two reports, theirs first.
ONE_SIDED = {
    # an address with the TIP.PGD: an event occurred, and tracing is off at its target
    "fup-pip-vmcs-tip_pgd": ({}, {"interrupt": 1}),
    "psb-fup-tip_pgd": ({}, {"interrupt": 1}),
    # only the number of instructions is listed
    "linear-fup-tip_pgd": ({}, {"disabled": 1}),
    # PWRE.HW: the chapter has it in another bit
    "mwait-pwre-exstop_ip-ovf": ({"pwre c1.0 hw": 1}, {"pwre c1.0": 1}),
    "mwait-pwre-ovf": ({"pwre c1.0 hw": 1}, {"pwre c1.0": 1}),
    "pwre-exstop_ip-pwrx": ({"pwre c1.0 hw": 1}, {"pwre c1.0": 1}),
    # libipt was configured to resume at the next IP after a contradiction; we wait for a PSB
    "ptxed-resync-bad_query-fup-tip": ({"interrupt": 1, "disabled": 1}, {}),
    "ptxed-resync-bad_query-tip": ({"disabled": 1}, {}),
    # libipt stops at an error before the PIP
    "pip-pip_mov_cr3-fail": ({}, {"paging, cr3: b000": 1}),
    # the state in a PSB+ is no event there
    "psb-vmcs": ({}, {"vmcs, base: cdcdf000": 1}),
    "ptxed-tick": ({}, {"cbr: 2": 1}),
    # the target of an abort is a separate event there
    "tsx-abort": ({"interrupt": 1}, {}),
    "ptxed-resync-nomap-mode_tsx-fup-tip": ({"interrupt": 1}, {}),
    # tracing is on and the code is unknown: no packet shows that tracing was off in between
    "ptxed-resync-nomap-tip_pge": ({"disabled": 1}, {}),
}


def runs() -> list[Any]:
    if not FOLDER.is_dir():
        return []
    index = json.loads((FOLDER / "index.json").read_text())
    found = [(case, run) for case in index for run in case["runs"]]
    return [
        pytest.param(case, run, id=case["name"])
        for case, run in found
        if run["level"] == "instructions"
    ]


def libipt_events(text: str, *, modes: bool) -> Counter[str]:
    """Return libipt's events, without times and addresses, which other tests compare."""
    found = Counter[str]()
    for line in re.findall(r"^\[(.*)\]$", text, re.MULTILINE):
        event = re.sub(r"^[0-9a-f]{16}  ", "", line)
        event = re.sub(r", (ip|at|from|to): [0-9a-f]+", "", event)
        if not NOT_EVENTS.fullmatch(event) and (modes or not event.startswith("exec mode")):
            # resumed: enabled at the address where it was disabled
            event = "enabled" if event == "resumed" else event
            found[re.sub(r": 0+(?=[0-9a-f])", ": ", event)] += 1
    return found


def format_event(event: of.TraceEvent, *, flags: bool) -> Iterator[str]:
    """Yield an event in libipt's format. An event with a CFE occurs twice if it has a target."""
    match event:
        case of.TracingEnabled() | of.TracingDisabled() | of.Overflow() | of.TracingStopped():
            yield event.event_name
        case of.Interrupt(vector=None):
            yield "interrupt"
        case of.Interrupt(user=True):
            yield f"uintr {event.vector}"
        case of.Interrupt():
            cr2 = f", cr2: {event.cr2:x}" if event.cr2 is not None else ""
            yield f"interrupt {event.vector}{cr2}"
        case of.PagingChange():
            yield f"paging, cr3: {event.cr3:x}" + ", nr" * event.nonroot
        case of.Transaction(step="begin"):
            yield "begin transaction"
        case of.Transaction(step="commit"):
            yield "committed"
        case of.Transaction(step="abort"):
            yield "aborted"
        case of.VmExit():
            fields = {
                "intr": event.vector and f"{event.vector}",
                "vmxr": event.reason is not None and f"{event.reason:x}",
                "vmxq": event.qualification is not None and f"{event.qualification:x}",
            }
            yield "".join(["vmexit", *(f", {key}: {text}" for key, text in fields.items() if text)])
        case of.ControlFlowEvent(name="SIPI"):
            yield f"sipi: {event.vector:x}"
        case of.ControlFlowEvent(name="SWINTR"):
            yield f"swintr {event.vector}"
        case of.ControlFlowEvent():
            yield event.name.lower()
        case of.PtWrite():
            yield f"ptwrite: {event.value:x}"
        case of.VmcsChange():
            yield f"vmcs, base: {event.pointer:x}"
        case of.MaintenanceEvent():
            yield f"mnt: {event.payload:x}"
        case of.TriggerEvent():
            yield f"trig {event.triggers:02x}" + ", mult" * event.multiple
        case of.FrequencyChange():
            yield f"cbr: {event.ratio:x}"
        case of.ExecutionModeChange() if flags:
            yield "interrupts enabled" if event.interrupts else "interrupts disabled"
        case of.ExecutionModeChange():
            yield f"exec mode: {event.bits}-bit"
    named = isinstance(event, of.ControlFlowEvent | of.VmExit)
    named |= isinstance(event, of.Interrupt) and event.vector is not None
    if named and getattr(event, "to", None) is not None:
        yield "interrupt"


def format_power_event(event: Event) -> Iterator[str]:
    """Yield the packets of a power event in libipt's format; our event combines them."""

    def state(number: int) -> str:
        return f"c{(number & 15) + 1 & 15}"

    value = event.value
    match event.kind:
        case EventKind.MWAIT:
            yield f"mwait {value & 0xFFFFFFFF:x} {value >> 32:x}"
        case EventKind.PWRE:
            yield f"pwre {state(value >> 4)}.{(value & 15) + 1 & 15:x}" + " hw" * (value >> 8 & 1)
        case EventKind.PWRX:
            wake = {1: "int", 4: "st", 8: "hw"}[value >> 8]
            yield f"pwrx {wake}: {state(value >> 4)} ({state(value)})"
        case EventKind.EXSTOP:
            yield "exstop"


def stream(case: dict[str, Any], run: dict[str, Any]) -> Stream:
    options = dict(zip(run["options"], run["options"][1:], strict=False))
    first, last = (options.get(f"--filter:addr0_{end}") for end in "ab")
    ranges = [(int(first, 16), int(last, 16))] if first and last else []
    path = FOLDER / case["name"]
    image = rtit.Image().add_file(f"{path}.bin", int(case["image_base"], 16))
    data = Path(f"{path}.pt").read_bytes()
    return rtit.decode(data, image, cpu=run["cpus"][0], ranges=ranges).streams[0]


@pytest.mark.parametrize(("case", "run"), runs())
def test_events_equal_those_of_libipt(case: dict[str, Any], run: dict[str, Any]) -> None:
    flags = "--event:iflags" in run["options"]
    one = stream(case, run)
    ours = Counter(word for each in one.events() for word in format_event(each, flags=flags))
    ours += Counter(word for each in one.raw_events().rows() for word in format_power_event(each))
    theirs = libipt_events((FOLDER / run["expected"]).read_text(), modes=not flags)
    assert (dict(theirs - ours), dict(ours - theirs)) == ONE_SIDED.get(case["name"], ({}, {}))


def test_published_cases_contain_events() -> None:
    if not FOLDER.is_dir():
        pytest.skip("the folder of real traces is not beside the repository")
    texts = (FOLDER / param.values[1]["expected"] for param in runs())
    assert sum(libipt_events(text.read_text(), modes=True).total() for text in texts) > 250
