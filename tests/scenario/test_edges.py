"""Edges of rules by one byte or one cycle, as scenarios with their packets."""

from __future__ import annotations

import pytest

from rtit.scenario import parse, run
from scenario.edges import BEGIN, CYCLES, USER, case

POWER = [
    case(
        "the deepest state itself keeps its sub-state",
        "arch cpl=0\nparameters deepest_cstate=2\nctl OS PwrEvtEn\n"
        + BEGIN
        + "mwait 0x1000 0x1003 0x21\n"
        "    MWAIT 0x21 0\n    PWRE 0 2 1\n    EXSTOP 1\n    FUP 0x1000\n",
        "PWRE-003",
    ),
]

OVERFLOW = [
    case(
        "outside the ranges a FUP by APL12",
        "profile full errata=APL12\nctl User BranchEn ADDR0_CFG=1\n"
        "write ADDR0_A 0x2000\nwrite ADDR0_B 0x2fff\n"
        + BEGIN
        + "begin_overflow\nend_overflow 0x1000\n    OVF\n    FUP 0x1000\n",
    ),
    case(
        "IF is not told where nobody asks",
        "arch cpl=0\nctl OS\n"
        + BEGIN
        + "begin_overflow\nchange_mode 0x1000 0x1001 interrupt_flag=False\n"
        "end_overflow 0x1001\n    OVF\n",
        "OVF-005",
    ),
    case(
        "more than an empty buffer takes is over a cycle later",
        "parameters buffer_bytes=256 ovf_resolve_level=128\n"
        + USER
        + "at 100\npad 300\nat 101\nconditional 0x1000 0x1002 0x1010 True\n"
        "    OVF\n    FUP 0x1010\n",
        "OVF-001",
    ),
    case(
        "a call ends it as any branch does",
        "parameters buffer_bytes=256\n"
        + USER
        + "at 100\npad 300\nat 101\ncall 0x1000 0x1005 0x2000\n    OVF\n    FUP 0x2000\n",
        "OVF-003",
    ),
    case(
        "what has drained is counted from the last packet on",
        "parameters buffer_bytes=256\n"
        + USER
        + "at 100\npad 250\n    PAD * 250\nat 110\npad 20\nstate level=240\n",
        "OVF-001",
    ),
    case(
        "what is known is not told again",
        "arch cpl=0 vmx=root vmcs=0x9000\nctl OS BranchEn\n"
        + BEGIN
        + "begin_overflow\nend_overflow 0x1000\n    OVF\n    FUP 0x1000\n",
        "OVF-015",
    ),
    case(
        "outside the context no FUP",
        "profile full errata=APL12\nctl OS BranchEn\n"
        + BEGIN
        + "begin_overflow\nend_overflow 0x1000\n    OVF\n",
        "OVF-004",
    ),
    case(
        "its FUP is where execution is",
        USER + "begin_overflow\nend_overflow 0x3000\n    OVF\n    FUP 0x3000\n",
        "OVF-003",
    ),
    case(
        "its FUP is where the trace ends, if that ends it",
        USER + "begin_overflow\ndisable 0x1010\n"
        "    OVF\n    FUP 0x1010\n    FUP 0x1010\n    TIP.PGD\n",
        "OVF-003",
    ),
    case(
        "its FUP is LastIP",
        USER
        + "begin_overflow\nend_overflow 0x123456781000\n    OVF\n    FUP 0x123456781000\n"
        + "indirect_jump 0x123456781000 0x123456782000\n    = 2d 00 20\n",
        "IPC-008",
    ),
    case(
        "what is owed is told once",
        "arch cpl=0 vmx=root vmcs=0x9000\nctl OS BranchEn\n"
        + BEGIN
        + "resume 0x2000\n    TIP.PGD\n"
        "begin_overflow\nend_overflow 0x2000\n    OVF\n"
        "interrupt 0x2000 0x3000\n    MODE.Exec 64\n    TIP.PGE 0x3000\n"
        "vmcs conceal_entry=True conceal_execution=True\n"
        "vm_entry 0x3000 0x5000 cr3=0x7000\n    TIP 0x5000\n",
        "OVF-016",
    ),
    case(
        "MOV CR3 into the context tells what is owed",
        "arch cpl=0 vmx=root vmcs=0x9000 cr3=0x5000\nctl OS User BranchEn CR3Filter\n"
        "write CR3_MATCH 0x5000\n" + BEGIN + "mov_cr3 0x1000 0x1003 0x6000\n    TIP.PGD\n"
        "begin_overflow\nvmptrld 0x1003 0x1007 0xa000\nend_overflow 0x1007\n    OVF\n"
        "mov_cr3 0x1007 0x100a 0x5000\n"
        "    PIP 0 0x5000\n    VMCS 0xa000\n    MODE.Exec 64\n    TIP.PGE 0x100a\n",
        "OVF-015",
    ),
    case(
        "in a block the items that fit are sent",
        "parameters buffer_bytes=256\n" + USER + "pad 211\n    PAD * 211\n"
        "pebs 0x1000 4:0=1     # 29 + 211 + 3 + 9; BEP and FUP, 5 bytes, do not fit\n"
        "    BBP 0 4\n    BIP 0 0 1\nstate level=252\n",
        "OVF-014",
    ),
    case(
        "it begins with nothing deferred",
        "parameters deferred_tips=2\n"
        + USER
        + "begin_overflow\nend_overflow 0x1000\n    OVF\n    FUP 0x1000\n"
        "indirect_jump 0x1000 0x2000\n"
        "indirect_jump 0x2000 0x3000\n    TIP 0x2000\n    TIP 0x3000\n",
        "DTIP-001",
    ),
]

TIME = [
    case(
        "an MTC before a block, two cycles an instruction",
        "time cpi=2\nctl User BranchEn MTCEn\n" + BEGIN + "pebs 0x1000 at_4=21 4:0=1\n"
        "    MTC 65\n    BBP 0 4\n    BIP 0 0 1\n    BEP 1\n    FUP 0x1000\n",
        "BBP-003",
    ),
    case(
        "another frequency",
        "parameters tsc_on_frequency_change=True\nctl User BranchEn TSCEn CYCEn\n"
        + BEGIN
        + "at 5\nchange_frequency 8\n    CYC 5\n    TSC 0x3b9aca05\n    CBR 8\n",
        "CYC-002",
    ),
    case(
        "the end of a trace a cycle after a CYC",
        f"{CYCLES}at 5\nsyscall 0x1000 0x2000\n    CYC 5\n    TIP.PGD\n"
        "at 6\ndisable 0x2000\n    CYC 1\n",
        "CYC-001",
    ),
    case(
        "a result that waits for the timer",
        "parameters tnt_flush_cycles=7\n"
        + USER
        + "at 1\nconditional 0x1000 0x1002 0x1010 False\nat 6\nat 100\n    TNT N\n",
        "TNT-009",
    ),
    case(
        "two cycles an instruction",
        f"time cpi=2\n{CYCLES}at 10\nindirect_jump 0x1000 0x2000\n    CYC 20\n    TIP 0x2000\n",
        "CYC-001",
    ),
    case(
        "MODE.Exec of a branch without a report",
        "arch cpl=0 interrupt_flag=False\nctl OS User EventEn CYCEn\n"
        + BEGIN
        + "at 5\nresume 0x2000\n    CYC 5\n    MODE.Exec 64 IF\n    FUP 0x2000\n",
        "CYC-002",
    ),
    case(
        "what an overflow left untold",
        "arch cpl=0\nctl OS BranchEn CYCEn\n"
        + BEGIN
        + "begin_overflow\nmov_cr3 0x1000 0x1003 0x6000\nresume 0x2000\n"
        "at 5\nend_overflow 0x2000\n    CYC 5\n    OVF\n"
        "at 8\ninterrupt 0x2000 0x3000\n"
        "    CYC 3\n    PIP 0 0x6000\n    MODE.Exec 64\n    TIP.PGE 0x3000\n",
        "CYC-002",
    ),
    case(
        "a VMX abort",
        "arch cpl=0 vmx=nonroot vmcs=0x9000\nctl OS User BranchEn CYCEn\n"
        + BEGIN
        + "at 5\nvm_exit 0x1000 0x2000 aborts=True\n"
        "    CYC 5\n    FUP 0x1000\n    PIP 0 0x0\n    shutdown\n",
        "CYC-016",
    ),
    case(
        "a range entered in sequence",
        "parameters filter_sequential=at_boundary\nctl User BranchEn CYCEn ADDR0_CFG=1\n"
        "write ADDR0_A 0x2000\nwrite ADDR0_B 0x2fff\nenable 0x1ff0\n    ...\n"
        "at 5\nretire 0x2000\n    CYC 5\n    MODE.Exec 64\n    TIP.PGE 0x2000\n",
        "CYC-002",
    ),
    case(
        "the counter wraps again after an overflow",
        "parameters cyc_counter_bits=12\n"
        + CYCLES
        + "begin_overflow\nat 5000\nend_overflow 0x1000\n    CYC 904\n    OVF\n    FUP 0x1000\n"
        "at 10000\n    CYC 4095\n",
        "CYC-005",
    ),
    case(
        "the counter wraps after a module",
        "parameters cyc_counter_bits=12 acm_timing_packets=False\n"
        "arch cpl=0\nctl OS BranchEn CYCEn\n"
        + BEGIN
        + "at 3000\nacm_begin 0x1000\nat 9000\nacm_end 0x1003\n"
        "at 10094\nat 10095\n    CYC 4095\n",
        "TXT-005",
    ),
    case(
        "the threshold holds across a module",
        "parameters acm_timing_packets=False\narch cpl=0\nctl OS BranchEn CYCEn CycThresh=5\n"
        + BEGIN
        + "at 2\nacm_begin 0x1000\nat 100\nacm_end 0x1003\n"
        "at 103\nindirect_jump 0x1003 0x2000\n    TIP 0x2000\n"
        "at 114\nindirect_jump 0x2000 0x3000\n    CYC 16\n    TIP 0x3000\n",
        "CYC-013",
    ),
    case(
        "an MTC a cycle after a CYC has its own",
        f"ctl User BranchEn MTCEn CYCEn\n{BEGIN}"
        "at 39\nindirect_jump 0x1000 0x2000\n    CYC 39\n    TIP 0x2000\n"
        "at 40\n    CYC 1\n    MTC 65\n",
        "CYC-001",
    ),
    case(
        "a result a cycle after a CYC has its own",
        CYCLES + "at 5\nindirect_jump 0x1000 0x2000\n    CYC 5\n    TIP 0x2000\n"
        "at 6\nconditional 0x2000 0x2002 0x2010 True\n    CYC 1\n",
        "CYC-001",
    ),
    case(
        "a trace that ends as it begins has no CYC",
        "arch cpl=0\nctl User BranchEn CYCEn\nenable 0x1000\n"
        "    PSB\n    CBR 10\n    PSBEND\ndisable 0x1000\n",
        "CYC-001",
    ),
    case(
        "parts of an operation, two cycles an instruction",
        "time cpi=2\narch cpl=0\nctl OS User BranchEn CYCEn\n"
        + BEGIN
        + "at 10\ninterrupt 0x1000 0x2000 cr3=0x5000 pip_at=12\n"
        "    FUP 0x1000\n    CYC 24\n    PIP 0 0x5000\n    TIP 0x2000\n",
        "CYC-012",
    ),
    case(
        "a block, two cycles an instruction",
        "time cpi=2\n" + USER + "at 9\npebs 0x1000 at_4=10 4:0=1\n"
        "    BBP 0 4\n    BIP 0 0 1\n    BEP 1\n    FUP 0x1000\n",
        "BBP-003",
    ),
]


@pytest.mark.parametrize("text", [*POWER, *OVERFLOW, *TIME])
def test_edge_case_passes(text: str) -> None:
    result = run(parse(text, "edge"))
    assert result.as_expected, result.report
