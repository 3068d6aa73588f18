"""Runs `*.scenario` files: what happens on a processor, line by line, and the packets that each
line must give.

A file has comments (`#`), settings, and events. An indented line is a packet that the event above
it produces; an event without indented lines produces none. `...` stands for any packets to the end
of that event, `#GP` and `#UD` for faults, and `= 04 2d 08 13` for exact bytes. IPs are full
addresses: they are reconstructed here by Table 33-18, without the unit's help.

`shutdown` stands for the shutdown state that an event ends in, after its packets.

Settings: `spec ID...`, `profile NAME key=value...`, `parameters key=value...`, `arch key=value...`,
`time key=value...`, `ctl Field Field=value...` (what `enable` writes, with TraceEn), `fabric`
(collect the bytes from the transport). Events: `pebs IP TYPE:ID=VALUE... [at_TYPE=CLOCK]`, `enable
IP`, `disable [IP]`, `write MSR VALUE`, `read MSR Field=value...`, `state field=value...`, `vmcs
key=value...` (the VMX controls of the VM entries and SMM VM exits from here on; MSR-load areas as
`CTL:0x2009,STATUS:0`), and the methods of `Processor` by name with their arguments in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rtit.errors import GeneralProtection, UndefinedOpcode
from rtit.packets import Packet, packets
from rtit.processor import Arch, Processor
from rtit.registers import CTL, MSRS, PROFILES, Msr
from rtit.unit import Memory, Parameters, Stamps, TimeModel
from rtit.unit.refusal import Shutdown
from rtit.unit.vmx_controls import VmxControls

BUFFER = 0x100_0000
SIZE = 1 << 20
BITS = {(0, 0): 16, (0, 1): 32, (1, 0): 64}
HINTS = (
    *("flush", "insert_psb", "insert_cyc", "pad", "mnt", "drop_mtc"),
    *("begin_overflow", "end_overflow"),
)
IP_PACKETS = ("TIP", "TIP.PGE", "TIP.PGD", "FUP")


def value(text: str) -> Any:
    if "," in text:
        return tuple(value(part) for part in text.split(","))
    try:
        return int(text, 0)
    except ValueError:
        return {"True": True, "False": False}.get(text, text)


def assignments(words: Iterable[str]) -> dict[str, Any]:
    pairs = (word.partition("=") for word in words)
    return {name: value(text) if equals else 1 for name, equals, text in pairs}


@dataclass
class Reader:
    """Packets to comparable lines: ("TIP", 0x1308)."""

    last_ip: int = 0

    def read(self, data: bytes) -> list[tuple[Any, ...]]:
        return [self._line(packet) for packet in packets(data)]

    def _line(self, packet: Packet) -> tuple[Any, ...]:
        fields: dict[str, Any] = dict(packet.fields)
        if packet.name == "PSB":
            self.last_ip = 0
        if packet.name == "MODE.Exec":
            mode = (packet.name, BITS[fields["csl"], fields["csd"]])
            return (*mode, "IF") if fields["iflag"] else mode
        if packet.name in IP_PACKETS:
            if fields["ip_bytes"] == 0:
                return (packet.name,)
            self.last_ip = self._ip(fields["ip_bytes"], fields["payload"])
            return (packet.name, self.last_ip)
        return (packet.name, *fields.values())

    def _ip(self, ip_bytes: int, payload: int) -> int:
        if ip_bytes == 3:
            return payload | (0xFFFF << 48 if payload >> 47 else 0)
        kept = {1: 16, 2: 32, 4: 48, 6: 64}[ip_bytes]
        return self.last_ip >> kept << kept | payload


@dataclass
class Scenario:
    path: Path
    spec: list[str] = field(default_factory=list)
    ctl: dict[str, int] = field(default_factory=dict)
    settings: dict[str, list[str]] = field(default_factory=dict)
    events: list[tuple[int, list[str], list[str]]] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Scenario:
        self = cls(path)
        for number, raw in enumerate(path.read_text().splitlines(), 1):
            line = raw if raw.strip() in ("#GP", "#UD") else raw.split("#")[0]
            words = line.split()
            if not words:
                continue
            if line[0].isspace():
                self.events[-1][2].append(line.strip())
            elif words[0] == "spec":
                self.spec += words[1:]
            elif words[0] == "ctl" and not self.events:
                self.ctl = assignments(words[1:])
            elif words[0] in ("profile", "parameters", "arch", "time", "fabric"):
                self.settings[words[0]] = words[1:]
            else:
                self.events.append((number, words, []))
        return self

    def run(self) -> None:
        machine = Machine(self)
        for number, words, expected in self.events:
            got = machine.event(words)
            check(f"{self.path.name}:{number}: {' '.join(words)}", got, expected)


def check(where: str, got: tuple[list[tuple[Any, ...]], bytes], expected: list[str]) -> None:
    lines, raw = got
    wanted: list[tuple[Any, ...]] = []
    for text in expected:
        if text.startswith("= "):
            assert raw.hex(" ") == text[2:].lower(), where
            return
        if text == "...":
            lines = lines[: len(wanted)]
            break
        wanted.append(tuple(value(word) for word in text.split()))
    assert lines == wanted, f"{where}: {raw.hex(' ')}"


def vmx_controls(named: dict[str, Any]) -> VmxControls:
    for key in ("entry_loads", "exit_loads"):
        if text := named.get(key):
            pairs = (each.split(":") for each in ((text,) if isinstance(text, str) else text))
            named[key] = tuple((int(Msr[name]), int(number, 0)) for name, number in pairs)
    return VmxControls(**named)


class Machine:
    def __init__(self, scenario: Scenario) -> None:
        settings = scenario.settings
        name, *changes = settings.get("profile", ["full"])
        self.ctl = CTL.encode(TraceEn=1, **scenario.ctl)
        self.out = bytearray()
        self.reader = Reader()
        self.controls = VmxControls()
        memory = Memory(observer=lambda _, data: self.out.extend(data))
        self.cpu = Processor(
            profile=replace(PROFILES[name], **assignments(changes)),
            memory=memory,
            time=TimeModel(**assignments(settings.get("time", []))),
            parameters=Parameters(**assignments(settings.get("parameters", []))),
            arch=Arch(**assignments(settings.get("arch", []))),
            fabric=self.out.extend,
        )
        if self.cpu.unit.profile.single_range:
            self.cpu.wrmsr(Msr.OUTPUT_BASE, BUFFER)
            self.cpu.wrmsr(Msr.OUTPUT_MASK_PTRS, SIZE - 1)
        elif self.cpu.unit.profile.topa:
            memory.write_u64(0x1000, BUFFER | 8 << 6)
            memory.write_u64(0x1008, 0x1000 | 1)
            self.cpu.wrmsr(Msr.OUTPUT_BASE, 0x1000)
            self.out.clear()

    def event(self, words: list[str]) -> tuple[list[tuple[Any, ...]], bytes]:
        try:
            shutdown: list[tuple[Any, ...]] = []
            self._do(words)
        except GeneralProtection:
            return [("#GP",)], b""
        except UndefinedOpcode:
            return [("#UD",)], b""
        except Shutdown:
            shutdown = [("shutdown",)]
        raw = bytes(self.out)
        self.out.clear()
        return self.reader.read(raw) + shutdown, raw

    def _do(self, words: list[str]) -> None:
        cpu, (name, *rest) = self.cpu, words
        named = assignments(word for word in rest if "=" in word)
        plain = [value(word) for word in rest if "=" not in word]
        if name == "enable":
            cpu.wrmsr(Msr.CTL, self.ctl, next_ip=plain[0] if plain else None)
        elif name == "disable":
            now = cpu.rdmsr(Msr.CTL)
            cpu.wrmsr(Msr.CTL, now & ~1, ip=plain[0] if plain else None)
        elif name == "ctl":
            self.ctl = CTL.encode(TraceEn=1, **assignments(rest))
        elif name == "write":
            address = Msr[plain[0]] if plain[0] in Msr.__members__ else plain[0]
            cpu.wrmsr(address, plain[1])
        elif name == "read":
            if plain[0] not in Msr.__members__:
                assert cpu.rdmsr(plain[0]) == plain[1]
                return
            content = cpu.rdmsr(Msr[plain[0]])
            if len(plain) > 1:
                assert content == plain[1], f"{content:#x}"
            decoded = MSRS[Msr[plain[0]]].decode(content)
            assert {key: decoded[key] for key in named} == named
        elif name == "state":
            assert {key: getattr(cpu.unit.state, key) for key in named} == named
        elif name in HINTS:
            getattr(cpu.unit, name)(*plain)
        elif name == "pebs":
            groups: dict[int, list[tuple[int, Any]]] = {}
            clocks = {int(key[3:]): named.pop(key) for key in list(named) if key[:3] == "at_"}
            for key in [key for key in named if ":" in key]:
                kind, number = (int(part, 0) for part in key.split(":"))
                groups.setdefault(kind, []).append((number, named.pop(key)))
            (ip,) = plain
            cpu.pebs(ip, groups, clocks=clocks, **named)
        elif name == "vmcs":
            self.controls = vmx_controls(named)
        else:
            if name in ("vm_entry", "smm_vm_exit", "smm_vm_entry"):
                named["controls"] = self.controls
            if name == "vm_entry":
                wanted = named.pop("returns", None)
                assert cpu.vm_entry(*plain, **named) == wanted
                return
            if stamps := {key[:-3]: named.pop(key) for key in list(named) if key.endswith("_at")}:
                named["stamps"] = Stamps(**stamps)
            getattr(cpu, name)(*plain, **named)


class ScenarioFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield ScenarioItem.from_parent(self, name=self.path.stem)


class ScenarioItem(pytest.Item):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scenario = Scenario.load(self.path)
        self.add_marker(pytest.mark.spec(*self.scenario.spec))

    def runtest(self) -> None:
        self.scenario.run()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, AssertionError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    if file_path.suffix == ".scenario":
        return ScenarioFile.from_parent(parent, path=file_path)
    return None
