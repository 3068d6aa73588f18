"""Packets of real traces equal those of other decoders."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from rtit.packets import BadBytes, Packet, find_psb, iterate_packets, scan

NAMES = {
    "tnt.8": "TNT",
    "tnt.64": "TNT.64",
    "stop": "TraceStop",
    "mode.exec": "MODE.Exec",
    "mode.tsx": "MODE.TSX",
}
LINE = re.compile(r"^([0-9a-f]{16}) +([a-z0-9.]+) *(.*)$")
IP_DIGITS = {0: 0, 1: 4, 2: 8, 3: 12, 4: 12, 6: 16}


def flags(rest: Any, *names: Any) -> Any:
    shown = {word.strip() for word in rest.split(",")}
    return {field: int(word in shown) for field, word in names}


def ip_fields(rest: Any) -> Any:
    ip_bytes, _, digits = rest.partition(": ")
    low = digits.strip()[16 - IP_DIGITS[int(ip_bytes)] :]
    return {"ip_bytes": int(ip_bytes), "payload": int(low, 16) if low else None}


def numbers(rest: Any) -> Any:
    return [int(word, 16) for word in re.findall(r"[0-9a-f]+", rest.split("  ")[0].split("tsc")[0])]


def c_states(rest: Any) -> Any:
    """Convert C-state numbers, which are MWAIT's encoding plus one, modulo 16."""
    return [(int(digits) - 1) & 15 for digits in re.findall(r"[c.](\d+)", rest)]


def libipt_fields(name: Any, rest: Any) -> Any:
    """Return the fields in the other decoder's line, under our names."""
    match name:
        case "tnt.8" | "tnt.64":
            return {"bits": rest.strip().replace("!", "T").replace(".", "N")}
        case "tip" | "tip.pge" | "tip.pgd" | "fup":
            return ip_fields(rest)
        case "mode.exec":
            return flags(rest, ("csl", "cs.l"), ("csd", "cs.d"), ("iflag", "if"))
        case "mode.tsx":
            return flags(rest, ("in_tx", "intx"), ("tx_abort", "abrt"))
        case "pip":
            return {"cr3": numbers(rest)[0], "nr": int(", nr" in rest)}
        case "vmcs":
            return {"pointer": numbers(rest)[0]}
        case "tsc":
            return {"tsc": numbers(rest)[0]}
        case "cbr":
            return {"ratio": numbers(rest)[0]}
        case "mtc":
            return {"ctc": numbers(rest)[0]}
        case "cyc":
            return {"cycles": numbers(rest)[0]}
        case "tma":
            return dict(zip(("ctc", "fast_counter"), numbers(rest), strict=False))
        case "mnt":
            return {"payload": numbers(rest)[0]}
        case "mwait":
            return dict(zip(("hints", "ext"), numbers(rest), strict=False))
        case "pwre":  # their HW bit is another one
            return dict(zip(("state", "sub_state"), c_states(rest), strict=True))
        case "pwrx":
            wake = {"int": 1, "st": 4, "hw": 8}[rest.partition(":")[0]]
            last, deepest = c_states(rest)
            return {"wake": wake, "last": last, "deepest": deepest}
        case "exstop":
            return {"ip": int("ip" in rest)}
        case "ptw":
            size, _, value = rest.partition(": ")
            payload = int(value.split(",")[0], 16)
            return {"payload_bytes": int(size), "payload": payload, "ip": int("ip" in value)}
        case "cfe":
            kind, vector, ip = re.findall(r"^(\d+)(?:: (\d+))?(, ip)?", rest)[0]
            more = {"vector": int(vector)} if vector else {}
            return {"type": int(kind), "ip": int(bool(ip)), **more}
        case "trig":
            value, *words = [word.strip() for word in rest.split(",")]
            count = [int(word[6:]) for word in words if word.startswith("icnt: ")]
            icnt = count[0] if count else None
            counted = {"icntv": len(count), "icnt": icnt, "trbv": int(value, 16)}
            return counted | flags(rest, ("ip", "ip"), ("mult", "mult"))
        case "evd":
            kind, _, value = rest.partition(": ")
            return {"type": int(kind), "payload": int(value.split()[0], 16)}
    return {}


def cases(traces: Any) -> Any:
    folder = traces / "libipt-cases"
    for entry in json.loads((folder / "index.json").read_text()):
        for run in entry["runs"]:
            if run["level"] == "packets" and "--no-offset" not in run["options"]:
                yield folder, entry["name"], run


def test_packets_of_libipt_cases_equal_its_listing(traces: Any) -> None:
    compared, names = 0, set()
    for folder, name, run in cases(traces):
        text = (folder / run["expected"]).read_text()
        lines = [found.groups() for found in map(LINE.match, text.splitlines()) if found]
        data = (folder / f"{name}.pt").read_bytes()
        if not lines or "error decoding packet" in text:
            continue  # what that decoder refuses: the bits that the chapter reserves
        start = 0 if "--no-sync" in run["options"] else find_psb(data) or 0
        ours = [item for item in scan(data, start) if isinstance(item, Packet)]
        if "--no-cyc" in run["options"]:
            ours = [packet for packet in ours if packet.name != "CYC"]
        assert [packet.offset for packet in ours] == [int(at, 16) for at, _, _ in lines], name
        for packet, (at, theirs, rest) in zip(ours, lines, strict=True):
            where = f"{name} at {at}"
            assert packet.name == NAMES.get(theirs, theirs.upper()), where
            for field, value in libipt_fields(theirs, rest).items():
                assert packet.fields[field] == value, f"{where}: {field}"
            compared += 1
            names.add(packet.name)
    assert compared > 900
    assert len(names) >= 29


@pytest.mark.spec("PKT-001")
def test_reserved_bits_of_tma_do_not_stop_the_scan(traces: Any) -> None:
    data = (traces / "libipt-cases" / "tma-reserved_fc.pt").read_bytes()
    assert [packet.name for packet in iterate_packets(data)][:3] == ["PSB", "PSBEND", "TMA"]


def test_packets_of_a_processor_equal_the_listing(traces: Any) -> None:
    data = (traces / "dynamorio" / "pt.bin").read_bytes()
    assert not [item for item in scan(data) if isinstance(item, BadBytes)]
    count = Counter(packet.name for packet in iterate_packets(data))
    assert (count["CYC"], count["MTC"], count["PSB"], count["PSBEND"]) == (545, 538, 1, 1)
    assert (count["TIP.PGE"], count["TIP.PGD"]) == (3, 3)
    assert sum(item.size for item in iterate_packets(data)) == len(data) == 2272
