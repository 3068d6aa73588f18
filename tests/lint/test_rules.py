"""For each rule a stream that breaks only this rule at a known byte, and the corrected stream."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lint.streams import (
    ABORT,
    AWAKE,
    BBP,
    BEGIN,
    BEP,
    BIP,
    CBR,
    CYC,
    EXEC,
    EXSTOP,
    FUP,
    INTERRUPT,
    INTERRUPT_IP,
    MTC,
    MWAIT,
    NO_TX,
    OFF,
    ON,
    OVF,
    PAGE_FAULT,
    PGD,
    PGE,
    PIP,
    PSB,
    PSBEND,
    PTW,
    PWRE,
    PWRX,
    TIP,
    TMA,
    TNT,
    TSC,
    ip,
    packet,
)
from rtit.linter import RULES, lint


@dataclass(frozen=True)
class Case:
    """`before` and `before` + `right` are legal; `wrong` in place of `right` breaks the rule at its
    byte `at`.
    """

    rule: str
    before: bytes
    wrong: bytes
    right: bytes
    at: int = 0


def after(first: bytes, second: bytes, right: bytes) -> tuple[bytes, bytes, int]:
    """Return a case where `second` follows `first` in place of `right`."""
    return first + second, first + right, len(first)


CASES = [
    Case("packet", ON, b"\x09", TNT),
    Case("defined", ON, b"\xd9\x00\x00", TNT),
    Case("reserved-bits", ON, b"\x02\x03\x0a\x01", b"\x02\x03\x0a\x00"),
    Case("reserved-bits", ON, b"\x99\x09" + TIP, b"\x99\x01" + TIP),
    Case("reserved-bits", OFF + TSC, b"\x02\x73\x01\x00\x80\x00\x00", TMA),
    Case("reserved-bits", AWAKE, b"\x02\x22\x08\x20" + EXSTOP + FUP, PWRE + EXSTOP + FUP),
    Case("reserved-type", OFF, packet("BBP", sz=0, type=2), BBP),
    Case("reserved-type", OFF, packet("CFE", ip=0, type=0xE, vector=0), INTERRUPT),
    Case("reserved-type", OFF, packet("EVD", type=3, payload=0), PAGE_FAULT),
    Case("block-item", OFF + BBP, b"\x1c" + bytes(8), BIP),
    Case("cyc-length", ON, b"\x3f\x00", CYC),
    Case("ip-suppressed", ON, ip("TIP", None), TIP),
    Case("ip-suppressed", OFF, ip("TIP.PGE", None), PGE),
    Case("ip-suppressed", ON + PTW, ip("FUP", None), FUP),
    Case(
        "ip-canonical",
        ON,
        *after(
            packet("FUP", ip_bytes=6, payload=0x1234 << 48),
            packet("TIP", ip_bytes=1, payload=16),
            TIP,
        ),
    ),
    Case(
        "wake-reason", AWAKE + PWRE + EXSTOP + FUP, packet("PWRX", last=2, deepest=2, wake=0), PWRX
    ),
    Case("cfe-without-ip", OFF, packet("CFE", ip=1, type=4, vector=0) + FUP, b""),
    Case("ip-bit", ON, packet("EXSTOP", ip=0), EXSTOP + FUP),
    Case("ip-bit", ON + BBP + BIP, packet("BEP", ip=0), BEP + FUP),
    Case("in-psb-plus", PSB + CBR, TNT, PSBEND),
    Case("in-psb-plus", PSB + CBR, PTW + FUP, PSBEND),
    Case("in-psb-plus", PSB + CBR, PSB + CBR + PSBEND, OVF),
    Case("psb-plus-once", PSB + CBR + PIP, PIP + PSBEND, MTC + TSC + PSBEND),
    Case("psb-plus-whole", ON, *after(PSB + CBR + NO_TX + EXEC, PSBEND, FUP + PSBEND)),
    Case("psb-plus-whole", PSB, PSBEND, CBR + PSBEND),
    Case("psb-plus-whole", PSB + CBR + FUP, PSBEND, EXEC + NO_TX + PSBEND),
    Case("psb-plus-off", OFF, *after(PSB + CBR + NO_TX + EXEC + FUP, PSBEND, OVF)),
    Case("psbend", ON, PSBEND, TNT),
    Case("in-block", ON + BBP + BIP, packet("TNT.64", bits="T"), BIP + BEP + FUP),
    Case("in-block", ON + BBP + BIP, TIP, MTC + CYC + TSC + BEP + FUP),
    Case("in-block", OFF + BBP, PIP, OVF),
    Case("bep", ON, BEP + FUP, BBP + BEP + FUP),
    Case("off", OFF, TNT, PGE),
    Case("off", ON + PGD, TIP, PGE + TIP),
    Case("off", OFF, PGD, PGE + PGD),
    Case("on", ON, PGE, PGD + PGE),
    Case("after-overflow", ON + OVF, TNT, FUP + TNT),
    Case("after-overflow", ON + OVF + CYC, TIP, PGE + TIP),
    Case("asleep", AWAKE + PWRE + EXSTOP + FUP, TNT, PWRX + TNT),
    Case("pwrx", AWAKE, PWRX, TNT),
    Case("transaction", ON, NO_TX + FUP, BEGIN + FUP + NO_TX + FUP),
    Case("transaction", ON + BEGIN + FUP, BEGIN + FUP, ABORT + FUP + TIP),
    Case("tma", OFF, TMA, TSC + TMA),
    Case("tma", OFF, *after(TSC + PIP, TMA, PIP)),
    Case("mtc", OFF + MTC, MTC, CBR + MTC),
    Case("cyc", ON + CYC, packet("CYC", cycles=0), CYC),
    Case("fup-off", OFF, FUP + TIP, PGE + FUP + TIP),
    Case("fup", ON, *after(FUP, TNT, TIP)),
    Case("fup", ON, *after(FUP, PTW + FUP, EXEC + PIP + CYC + PGD)),
    Case("fup", ON, *after(FUP + ON[:-2], PSBEND, b"")),
    Case("ptw-fup", ON, *after(PTW, TNT, MTC + FUP)),
    Case("exstop-fup", ON, *after(EXSTOP, TIP, FUP)),
    Case("bep-fup", ON, *after(BBP + BEP, TNT, FUP)),
    Case("cfe-fup", OFF, *after(INTERRUPT_IP, PIP, FUP)),
    Case("cfe-shared", ON, *after(INTERRUPT, TIP, FUP + TIP)),
    Case("evd-cfe", ON, *after(PAGE_FAULT, FUP + TIP, INTERRUPT + FUP + TIP)),
    Case("mode-exec", ON, *after(EXEC, TNT, TIP)),
    Case("mode-exec", OFF, *after(EXEC, PSB + CBR + PSBEND, PGE)),
    Case("mode-tsx", ON, *after(BEGIN, TNT, CYC + FUP)),
    Case("abort-fup", ON + BEGIN + FUP, *after(ABORT, TIP, FUP + TIP)),
    Case("abort-tip", ON + BEGIN + FUP, *after(ABORT + FUP, TNT, PGD)),
    Case("mwait-exstop", AWAKE, *after(MWAIT, TNT, PWRE + EXSTOP + FUP)),
    Case("pwre-exstop", AWAKE + PWRE + EXSTOP + FUP + PWRX, *after(PWRE, PWRX, EXSTOP + FUP)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_broken_rule_is_found(case: Case) -> None:
    found = list(lint(case.before + case.wrong))
    assert [(each.rule.name, each.offset - len(case.before)) for each in found] == [
        (case.rule, case.at)
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_corrected_stream_has_no_findings(case: Case) -> None:
    assert list(lint(case.before + case.right)) == []


def test_overdue_psb_is_found() -> None:
    data = ON + 5000 * TNT + ON
    assert list(lint(data)) == []
    assert list(lint(data, psb_period=4096)) == []
    (found,) = lint(data, psb_period=2048)
    assert (found.rule.name, found.offset) == ("psb-period", len(ON) + 5000)


def test_every_rule_has_a_test() -> None:
    assert {case.rule for case in CASES} | {"psb-period"} == {rule.name for rule in RULES}


def test_rule_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_init_fup_without_tip_is_legal_before_sipi() -> None:
    """Its FUP has no TIP (Table 33-55 rows 23 and 24)."""
    sipi = packet("CFE", ip=0, type=5, vector=2)
    assert list(lint(ON + FUP + PGE + TNT)) == []
    assert list(lint(ON + FUP + OFF + PGE + TNT)) == []
    assert list(lint(ON + FUP + sipi + PGE + TNT)) == []


def test_last_ip_is_zero_after_a_psb() -> None:
    """Section 33.4.2.2: earlier errors of LastIP end at a PSB."""
    wrong = EXSTOP + packet("FUP", ip_bytes=6, payload=0x1234 << 48)
    low = packet("FUP", ip_bytes=1, payload=0x1000)
    jump = packet("TIP", ip_bytes=1, payload=0x1010)
    assert [each.rule.name for each in lint(ON + wrong + jump)] == ["ip-canonical"]
    assert list(lint(ON + wrong + PSB + CBR + NO_TX + EXEC + low + PSBEND + jump)) == []


def test_many_pending_packets_give_one_finding() -> None:
    (found,) = lint(OFF + 100 * INTERRUPT_IP + PIP)
    assert found.rule.name == "cfe-fup"
    assert f"{len(OFF):#x}" in found.detail


def test_stream_may_end_anywhere() -> None:
    data = ON + FUP + PIP + TIP + PTW + FUP + EXEC + TIP + BBP + BIP + BEP + FUP + OVF + FUP
    assert [cut for cut in range(len(data)) if list(lint(data[:cut]))] == []


def test_lint_continues_after_bad_bytes() -> None:
    found = list(lint(ON + b"\x09\x04" + OFF + TNT))
    assert [each.rule.name for each in found] == ["packet", "off"]


def test_errata_excuse_their_findings() -> None:
    data = OFF + PSB + CBR + NO_TX + EXEC + FUP + PSBEND + PGE
    assert [each.rule.name for each in lint(data)] == ["psb-plus-off", "on"]
    assert list(lint(data, errata=["BDM70"])) == []


def test_lint_accepts_data_in_chunks() -> None:
    data = ON + TNT + PSBEND
    whole = list(lint(data))
    assert [each.offset for each in whole] == [len(ON) + 1]
    assert list(lint(data[at : at + 1] for at in range(len(data)))) == whole
    assert list(lint(memoryview(bytearray(data)))) == whole
