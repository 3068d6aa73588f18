"""libipt and rtit follow streams with errata if they know the processor model.

libipt's list of models states which errata it expects (see `registers.errata`). Each stream is
compared with the executed path, and with the stream of the same events without the erratum.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from differential.oracles import libipt
from differential.oracles.raw import Section
from rtit.packets import iterate_packets
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, ERRATA, GOLDMONT_PLUS, SKYLAKE, Msr, Profile
from rtit.unit.arch_state import VmxControls
from rtit.unit.memory import Memory

core = pytest.importorskip("rtit._core", reason="the native module is not built")

BASE = 0x40_0000
CODE = {
    0x00: "ff e0",  # jmp rax
    0x10: "74 0e",  # je 20
    0x12: "ff e0",
    0x20: "eb 0e",  # jmp 30
    0x30: "ff e0",
    0x40: "0f 01 c2",  # vmlaunch
    0x50: "e9 ab 0f 00 00",  # jmp 1000
    0x60: "90 90 ff e0",  # nop; nop; jmp rax
    0x1000: "ff e0",
    0x1010: "74 0e",  # je 1020
    0x1020: "ff e0",
}
GOLDMONT = (6, 0x5C, 9)


class TracedProcessor:
    def __init__(self, profile: Profile, arch: ArchState | None = None, **ctl: int) -> None:
        self.out = bytearray()
        memory = Memory(observer=lambda _, data: self.out.extend(data))
        self.cpu = Processor(profile=profile, memory=memory, arch=arch)
        self.cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFFF)
        self.ctl = CTL.encode(TraceEn=1, **({"User": 1, "BranchEn": 1} | ctl))

    def range(self, first: int, last: int) -> None:
        self.cpu.set_msr(Msr.ADDR0_A, BASE + first)
        self.cpu.set_msr(Msr.ADDR0_B, BASE + last)

    def enable(self, ip: int) -> None:
        self.cpu.set_msr(Msr.CTL, self.ctl, next_ip=BASE + ip)

    def disable(self, ip: int) -> None:
        self.cpu.set_msr(Msr.CTL, 0, ip=BASE + ip)

    def jump(self, ip: int, target: int) -> None:
        """JMP RAX."""
        self.cpu.indirect_jump(BASE + ip, BASE + target)

    def names(self) -> list[str]:
        return [packet.name for packet in iterate_packets(bytes(self.out))]


@pytest.fixture(scope="module")
def code_section(tmp_path_factory: pytest.TempPathFactory) -> Section:
    image = bytearray(0x2000)
    for at, text in CODE.items():
        part = bytes.fromhex(text)
        image[at : at + len(part)] = part
    path = tmp_path_factory.mktemp("code") / "code.bin"
    path.write_bytes(image)
    return Section(path, 0, len(image), BASE)


def decode_with_libipt(
    traced: TracedProcessor,
    code_section: Section,
    cpu: tuple[int, int, int] | None,
    **packets_with: Any,
) -> libipt.Decoded:
    try:
        libipt.harness()
    except libipt.LibiptMissingError as error:
        pytest.skip(str(error))
    return libipt.decode(bytes(traced.out), [code_section], cpu, **packets_with)


def bdm70(traced: TracedProcessor) -> None:
    traced.enable(0x00)
    traced.jump(0x00, 0x10)
    traced.cpu.conditional(BASE + 0x10, BASE + 0x12, BASE + 0x20, taken=True)
    traced.cpu.jump(BASE + 0x20, BASE + 0x30)
    traced.jump(0x30, 0x00)
    traced.disable(0x00)


def skd022(traced: TracedProcessor) -> None:
    traced.enable(0x00)
    traced.jump(0x00, 0x40)
    off = VmxControls(entry_loads=((Msr.CTL, 0),))
    traced.cpu.vm_entry(BASE + 0x40, BASE + 0x60, controls=off)


def skl014(traced: TracedProcessor) -> None:
    traced.enable(0x00)
    traced.jump(0x00, 0x20)
    traced.cpu.jump(BASE + 0x20, BASE + 0x30)
    traced.jump(0x30, 0x50)
    traced.cpu.jump(BASE + 0x50, BASE + 0x1000)
    traced.jump(0x1000, 0x60)
    traced.jump(0x62, 0x00)
    traced.disable(0x00)


def overflow(traced: TracedProcessor) -> None:
    """The overflow hides the two branches at 10 and 20."""
    traced.enable(0x00)
    traced.jump(0x00, 0x10)
    traced.cpu.unit.begin_overflow()
    traced.cpu.at(5000)
    traced.cpu.conditional(BASE + 0x10, BASE + 0x12, BASE + 0x20, taken=True)
    traced.cpu.jump(BASE + 0x20, BASE + 0x30)
    traced.cpu.unit.end_overflow(BASE + 0x30)
    traced.jump(0x30, 0x00)
    traced.jump(0x00, 0x60)
    traced.jump(0x62, 0x10)
    traced.disable(0x10)


def skl168(traced: TracedProcessor) -> None:
    traced.enable(0x00)
    traced.cpu.at(10)
    traced.jump(0x00, 0x30)
    traced.cpu.at(20)
    traced.cpu.unit.insert_psb()
    traced.jump(0x30, 0x00)
    traced.disable(0x00)


def apl11(traced: TracedProcessor) -> None:
    traced.enable(0x00)
    traced.jump(0x00, 0x30)
    traced.cpu.unit.begin_overflow()
    traced.disable(0x30)
    traced.enable(0x60)
    traced.jump(0x62, 0x00)
    traced.disable(0x00)


def apl12(traced: TracedProcessor) -> None:
    traced.enable(0x00)
    traced.jump(0x00, 0x30)
    traced.cpu.unit.begin_overflow()
    traced.jump(0x30, 0x1020)
    traced.cpu.unit.end_overflow(BASE + 0x1020)
    traced.jump(0x1020, 0x00)
    traced.jump(0x00, 0x60)
    traced.disable(0x60)


@dataclass(frozen=True)
class ErratumCase:
    """An erratum: `path` has the offsets that the decoders must find.

    `packets_without` and `packets_with` are consecutive packets of the streams without and with
    the erratum.
    """

    erratum: str
    profile: Profile
    events: Callable[[TracedProcessor], None]
    path: tuple[int, ...]
    packets_without: str
    packets_with: str
    ctl: dict[str, int] = field(default_factory=dict)
    arch: ArchState | None = None
    cpu: tuple[int, int, int] | None = None
    filters: bool = False
    needs_model: bool = True

    def run(self, profile: Profile) -> TracedProcessor:
        traced = TracedProcessor(profile, self.arch, **self.ctl)
        if self.filters:
            traced.range(0x000, 0xFFF)
        self.events(traced)
        return traced

    @property
    def model(self) -> tuple[int, int, int]:
        return self.cpu or (self.profile.family, self.profile.model, self.profile.stepping)

    @property
    def options(self) -> dict[str, Any]:
        return {"filter_range": (BASE, BASE + 0xFFF)} if self.filters else {}


FILTER = {"ADDR0_CFG": 1}
BEFORE, AFTER = (0x00, 0x10, 0x20, 0x30), (0x60, 0x61, 0x62)
CASES = [
    ErratumCase(
        "BDM70",
        SKYLAKE,
        bdm70,
        BEFORE,
        "MODE.TSX PSBEND MODE.Exec TIP.PGE",
        "MODE.TSX MODE.Exec FUP PSBEND TIP.PGE",
    ),
    ErratumCase(
        "SKD022",
        SKYLAKE,
        skd022,
        (0x00, 0x40),
        "TIP TIP.PGD",
        "TIP FUP TIP.PGD",
        ctl={"OS": 1},
        arch=ArchState(cpl=0, vmx="root", vmcs=0x5000),
    ),
    ErratumCase(
        "SKL014",
        SKYLAKE,
        skl014,
        (0x00, 0x20, 0x30, 0x50, *AFTER),
        "TIP.PGD TIP.PGE",
        "TIP.PGD TIP.PGE",
        ctl=FILTER,
        filters=True,
    ),
    # libipt continues with the TIP after the OVF: it loses the branch at 30, too.
    ErratumCase("SKD010", SKYLAKE, overflow, (0x00, 0x00, *AFTER), "OVF FUP TIP", "OVF TIP"),
    ErratumCase(
        "SKD007",
        SKYLAKE,
        overflow,
        (0x00, 0x30, 0x00, *AFTER),
        "CYC OVF FUP",
        "CYC CYC FUP",
        ctl={"CYCEn": 1, "TSCEn": 1},
    ),
    ErratumCase(
        "SKL168",
        SKYLAKE,
        skl168,
        (0x00, 0x30),
        "TIP CYC PSB",
        "TIP PSB",
        ctl={"CYCEn": 1, "TSCEn": 1},
        needs_model=False,
    ),
    ErratumCase(
        "APL11", GOLDMONT_PLUS, apl11, (0x00, *AFTER), "OVF FUP FUP TIP.PGD", "OVF TIP.PGD"
    ),
    # A Goldmont: libipt expects this erratum of no later processor.
    ErratumCase(
        "APL12",
        GOLDMONT_PLUS,
        apl12,
        (0x00, 0x00),
        "OVF MODE.Exec TIP.PGE",
        "OVF FUP MODE.Exec TIP.PGE",
        ctl=FILTER,
        cpu=GOLDMONT,
        filters=True,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.erratum)
def test_libipt_follows_stream_with_erratum_of_the_model(
    case: ErratumCase, code_section: Section
) -> None:
    traced = case.run(case.profile.with_errata(case.erratum))
    found = decode_with_libipt(traced, code_section, case.model, **case.options)
    assert found.errors == []
    assert [ip - BASE for ip in found.ips] == list(case.path)
    without_model = decode_with_libipt(traced, code_section, None, **case.options)
    assert (found.ips != without_model.ips) == case.needs_model


def decode_with_rtit(
    traced: TracedProcessor,
    code_section: Section,
    cpu: tuple[int, int, int] | None,
    **packets_with: Any,
) -> tuple[list[int], Any]:
    space = core.Space()
    space.map(0, BASE, code_section.path.read_bytes())
    ranges = [packets_with["filter_range"]] if packets_with else []
    flow = core.StreamDecoder(bytes(traced.out), space, cpu=cpu, ranges=ranges)
    ips = array("Q")
    while (part := flow.instructions(100)) is not None:
        ips.extend(part["ip"])
    return [ip - BASE for ip in ips], flow


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.erratum)
def test_rtit_follows_stream_with_erratum_of_the_model(
    case: ErratumCase, code_section: Section
) -> None:
    traced = case.run(case.profile.with_errata(case.erratum))
    ips, flow = decode_with_rtit(traced, code_section, case.model, **case.options)
    assert ips == list(case.path)
    overflows = "OVF" in traced.names() or case.erratum == "SKD007"
    assert flow.counts()["errors"] == ({"loss reported by hardware": 1} if overflows else {})
    # the CYC that SKL168 drops gives only time
    seen = {} if case.erratum == "SKL168" else {case.erratum: 1}
    assert flow.counts()["errata"] == seen


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.erratum)
def test_rtit_invents_nothing_for_an_unknown_processor(
    case: ErratumCase, code_section: Section
) -> None:
    traced = case.run(case.profile.with_errata(case.erratum))
    for cpu in (None, (6, 0xFFFF, 0)):
        ips, flow = decode_with_rtit(traced, code_section, cpu, **case.options)
        found = iter(case.path)
        assert all(ip in found for ip in ips)
        lost = any(row[2] == "lost" for row in flow.ledger())
        assert lost or ips == list(case.path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.erratum)
def test_erratum_changes_packets_as_documented(case: ErratumCase) -> None:
    plain, acting = (
        case.run(profile) for profile in (case.profile, case.profile.with_errata(case.erratum))
    )
    assert case.packets_without in " ".join(plain.names())
    assert case.packets_with in " ".join(acting.names())
    assert plain.out != acting.out
    if case.packets_without != case.packets_with:
        assert case.packets_with not in " ".join(plain.names())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.erratum)
def test_libipt_follows_stream_without_erratum(case: ErratumCase, code_section: Section) -> None:
    found = decode_with_libipt(case.run(case.profile), code_section, None, **case.options)
    assert found.errors == []


def test_cases_cover_every_erratum_of_the_unit() -> None:
    acting = [name for name, each in ERRATA.items() if each.acts and not each.flag]
    assert sorted(case.erratum for case in CASES) == sorted(acting)
