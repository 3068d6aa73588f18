"""The scenarios that come with rtit, and the titles of the chapter's sections."""

from __future__ import annotations

import os
from pathlib import Path

from rtit.errors import UsageError
from rtit.scenario.vocabulary import suggest_names

SECTION_TITLES = {
    "33.2.1.1": "direct branches",
    "33.2.1.2": "indirect branches and RET",
    "33.2.1.3": "far transfers",
    "33.2.2": "PTWRITE",
    "33.2.3": "power events",
    "33.2.4": "event trace",
    "33.2.5.1": "filtering by CPL",
    "33.2.5.2": "filtering by CR3",
    "33.2.5.3": "filtering by IP, TraceStop",
    "33.2.6.1": "PacketEn",
    "33.2.6.2": "TriggerEn",
    "33.2.6.3": "ContextEn",
    "33.2.6.4": "BranchEn",
    "33.2.6.5": "FilterEn",
    "33.2.7": "trace output",
    "33.2.8.1": "the MSRs in general",
    "33.2.8.2": "IA32_RTIT_CTL",
    "33.2.8.3": "enabling and disabling with TraceEn",
    "33.2.8.4": "IA32_RTIT_STATUS",
    "33.2.8.5": "IA32_RTIT_ADDRn_A and _B",
    "33.2.8.6": "IA32_RTIT_CR3_MATCH",
    "33.2.9.1": "transactions",
    "33.2.9.2": "transactions and IP filtering",
    "33.2.9.3": "system management mode",
    "33.2.9.4": "VMXON",
    "33.2.9.5": "enclaves",
    "33.2.9.6": "SENTER, ENTERACCS and authenticated code",
    "33.2.9.7": "MPX",
    "33.3.1": "detection and enumeration",
    "33.3.1.1": "effective and linear IPs",
    "33.3.1.2": "model-specific restrictions",
    "33.3.2": "configuration",
    "33.3.2.1": "enabling, and errors in it",
    "33.3.4": "reset",
    "33.3.5.2": "XSAVES and XRSTORS",
    "33.3.6": "cycle-accurate mode",
    "33.3.6.1": "the cycle counter",
    "33.3.6.2": "what a CYC packet means",
    "33.3.6.3": "cycle thresholds",
    "33.3.7": "PSB+",
    "33.3.8": "internal buffer overflow",
    "33.3.8.1": "overflow and the enables",
    "33.3.8.2": "overflow and time",
    "33.3.9": "tracing without TNT",
    "33.3.10": "operational errors",
    "33.4.1": "compound packet events",
    "33.4.1.1": "packet blocks",
    "33.4.2.1": "TNT",
    "33.4.2.2": "TIP, IP and RET compression",
    "33.4.2.3": "deferred TIPs",
    "33.4.2.4": "TIP.PGE",
    "33.4.2.5": "TIP.PGD",
    "33.4.2.6": "FUP",
    "33.4.2.7": "PIP",
    "33.4.2.8": "MODE",
    "33.4.2.9": "TraceStop",
    "33.4.2.10": "CBR",
    "33.4.2.11": "TSC",
    "33.4.2.12": "MTC",
    "33.4.2.13": "TMA",
    "33.4.2.14": "CYC",
    "33.4.2.15": "VMCS",
    "33.4.2.16": "OVF",
    "33.4.2.17": "PSB",
    "33.4.2.18": "PSBEND",
    "33.4.2.19": "MNT",
    "33.4.2.20": "PAD",
    "33.4.2.21": "PTW",
    "33.4.2.22": "EXSTOP",
    "33.4.2.23": "MWAIT",
    "33.4.2.24": "PWRE",
    "33.4.2.25": "PWRX",
    "33.4.2.26": "BBP and PEBS records",
    "33.4.2.27": "BIP",
    "33.4.2.28": "BEP",
    "33.4.2.29": "CFE",
    "33.4.2.30": "EVD",
    "33.5.1": "VMX controls",
    "33.5.2.1": "system-wide tracing",
    "33.5.2.2": "guest-only tracing",
    "33.5.2.3": "PT state that a hypervisor emulates",
    "33.5.2.4": "TSC scaling",
    "33.5.2.5": "failed VM entry",
    "33.5.2.6": "VMX abort",
    "33.6": "SMM-transfer monitor",
    "33.7": "packet generation scenarios",
    "33.8.1": "tracing SMM code",
    "33.8.3": "time",
    "33.8.3.1": "clocks and how they relate",
    "33.8.3.3": "TSC offset and scaling in guests",
}
"""Topics of sections, as `rtit scenario --list` shows them."""


def chapter_section_sort_key(section: str) -> tuple[int, ...]:
    """Return a key that sorts sections as the chapter does; "" sorts last."""
    return tuple(int(part) for part in section.split(".")) if section else (1 << 30,)


LIBRARY = Path(__file__).parent / "library"
"""Folder of the scenarios that come with rtit."""

SUFFIX = ".scenario"


def shipped_scenarios() -> list[Path]:
    """Return the files of the scenarios that come with rtit, by name."""
    return scenario_files(LIBRARY)


def scenario_files(folder: Path) -> list[Path]:
    """Return the scenario files of a folder, by name."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def find_scenario(name: str) -> Path:
    """Return a file by its path, or a shipped scenario by its name. Raises UsageError."""
    path = Path(name)
    if path.exists() or path.suffix == SUFFIX or os.sep in name:
        return path
    if (found := LIBRARY / f"{name}{SUFFIX}").is_file():
        return found
    names = [each.stem for each in shipped_scenarios()]
    raise UsageError(f"there is no file and no scenario {name!r}{suggest_names(name, names)}")
