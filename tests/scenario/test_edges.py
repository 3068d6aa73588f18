"""Where a rule turns on one byte, one cycle or one address: each told by its packets."""

from __future__ import annotations

from typing import Any

import pytest

from rtit.scenario import parse, run

BEGIN = "enable 0x1000\n    ...\n"
USER = f"ctl User BranchEn\n{BEGIN}"
CYCLES = f"ctl User BranchEn CYCEn\n{BEGIN}"
KERNEL = f"arch cpl=0\nctl OS User BranchEn\n{BEGIN}"


def case(name: str, text: str, *rows: str) -> Any:
    marks = [pytest.mark.spec(*rows)] if rows else []
    return pytest.param(text, id=name, marks=marks)


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

CONTEXT = [
    case(
        "SKL014 hides the target of a jump",
        "profile full errata=SKL014\nctl User BranchEn ADDR0_CFG=1\n"
        "write ADDR0_A 0x1000\nwrite ADDR0_B 0x1fff\n"
        + BEGIN
        + "jump 0x1010 0x2000\n    TIP.PGD\n",
    ),
    case(
        "results before a VMX abort",
        "arch cpl=0 vmx=nonroot vmcs=0x9000\nctl OS User BranchEn\n"
        + BEGIN
        + "conditional 0x1000 0x1002 0x1010 True\n"
        "vm_exit 0x1010 0x2000 aborts=True\n"
        "    TNT T\n    FUP 0x1010\n    PIP 0 0x0\n    shutdown\n",
        "TNT-008",
    ),
    case(
        "a VMX abort out of the context",
        "arch cpl=3 vmx=nonroot vmcs=0x9000\nctl User BranchEn\n"
        + BEGIN
        + "vm_exit 0x1000 0x2000 cpl=0 aborts=True\n    FUP 0x1000\n    shutdown\n",
        "VMX-012",
    ),
    case(
        "no call before INIT is returned to",
        KERNEL + "call 0x1000 0x1005 0x2000\ninit 0x2000 bsp=False\n    ...\n"
        "sipi 0\n    ...\nret 0x0 0x1005\n    TIP 0x1005\n",
    ),
    case(
        "SKL014 hides the target of a call, too",
        "profile full errata=SKL014\nctl User BranchEn ADDR0_CFG=1\n"
        "write ADDR0_A 0x1000\nwrite ADDR0_B 0x1fff\n"
        + BEGIN
        + "call 0x1010 0x1015 0x2000\n    TIP.PGD\n",
    ),
    case(
        "IF that changed unseen is told by the next event",
        "arch cpl=0 interrupt_flag=False\nctl OS EventEn\n"
        + BEGIN
        + "iret 0x1000 0x2000 cpl=3 interrupt_flag=True\n    ...\n"
        "interrupt 0x2000 0x3000 vector=32 interrupt_flag=True\n"
        "    CFE 0 1 32\n    MODE.Exec 64 IF\n    FUP 0x3000\n",
        "MODE-009",
    ),
    case(
        "a fault of a task switch clears IF",
        f"arch cpl=0\nctl OS User BranchEn EventEn\n{BEGIN}"
        "task_switch_fault 0x1000 0x2000\n"
        "    CFE 0 1 10\n    FUP 0x1000\n    MODE.Exec 64\n    TIP 0x2000\n",
        "MODE-003",
    ),
    case(
        "the base of CS counts from the change of mode on",
        "arch cs_base=0x10000\n"
        + USER
        + "change_mode 0x1000 0x1002 cs_l=False cs_d=True\n    MODE.Exec 32\n    FUP 0x1000\n"
        "indirect_jump 0x1002 0x2000\n    TIP 0x12000\n",
        "IPC-012",
    ),
    case(
        "MOV CR3 into the context, before a stop range",
        "arch cpl=0 cr3=0x5000\nctl OS User BranchEn CR3Filter ADDR0_CFG=2\n"
        "write CR3_MATCH 0x6000\nwrite ADDR0_A 0x8000\nwrite ADDR0_B 0x8fff\n"
        "enable 0x7ff0\n    ...\n"
        "mov_cr3 0x7ffd 0x8000 0x6000\n    PIP 0 0x6000\n    MODE.Exec 64\n    TIP.PGE 0x8000\n",
        "TSTOP-008",
    ),
    case(
        "a user interrupt by the row has one FUP",
        "parameters uintr_literal=table\nctl User BranchEn EventEn\n"
        + BEGIN
        + "user_interrupt 0x1000 0x2000 5\n    CFE 0 12 5\n    FUP 0x1000\n",
        "CFE-004",
    ),
    case(
        "a VMX abort into the context",
        "arch cpl=3 vmx=nonroot vmcs=0x9000\nctl OS BranchEn\n"
        + BEGIN
        + "vm_exit 0x1000 0x2000 cpl=0 aborts=True\n    PIP 0 0x0\n    shutdown\n",
        "VMX-012",
    ),
    case(
        "a VMX abort is an event",
        "arch cpl=0 vmx=nonroot vmcs=0x9000\nctl OS User BranchEn EventEn\n"
        + BEGIN
        + "vm_exit 0x1000 0x2000 reason=1 qualification=7 aborts=True\n"
        "    EVD 1 0x7\n    EVD 2 0x1\n    CFE 0 8 0\n    FUP 0x1000\n"
        "    PIP 0 0x0\n    shutdown\n",
        "VMX-012",
    ),
    case(
        "SIPI to the first page",
        KERNEL
        + "init 0x1000 bsp=False\n    FUP 0x1000\nsipi 0\n    MODE.Exec 16\n    TIP.PGE 0x0\n",
        "TAB55-024",
    ),
    case(
        "MOV CR3 into the context, in a range that was entered outside",
        "arch cpl=0 cr3=0x5000\nctl OS User BranchEn CR3Filter ADDR0_CFG=1\n"
        "write CR3_MATCH 0x6000\nwrite ADDR0_A 0x8000\nwrite ADDR0_B 0x8fff\n"
        + BEGIN
        + "jump 0x1000 0x8000\n"
        "mov_cr3 0x8000 0x8003 0x6000\n    PIP 0 0x6000\n    MODE.Exec 64\n    TIP.PGE 0x8003\n",
        "FIP-001",
    ),
    case(
        "LastIP is 0 after PSB",
        "parameters compress_after_psb=True\narch cpl=3\nctl OS BranchEn\n"
        + BEGIN
        + "state last_ip=0\ninsert_psb\n    ...\nstate last_ip=0\n",
        "IPC-009",
    ),
    case(
        "a late failure from outside the context, OS=0",
        "arch cpl=0 vmx=root vmcs=0x9000 cr3=0x1000\nctl User BranchEn CYCEn\n"
        + BEGIN
        + "at 5\nvm_entry 0x1000 0x5000 cpl=3 cr3=0x7000 fails=late host_ip=0x6000 returns=late\n"
        "at 9\nresume 0x2000\n    CYC 9\n    MODE.Exec 64\n    TIP.PGE 0x2000\n",
        "PIP-003",
        "CYC-003",
    ),
    case(
        "a VM exit that loads the CTL that is there before it ends the trace",
        "arch cpl=0 vmx=root vmcs=0x9000\nctl OS User BranchEn\n"
        + BEGIN
        + "vmcs exit_loads=CTL:0x200d,CTL:0x200c\nvm_entry 0x1000 0x5000\n    ...\n"
        "vm_exit 0x5004 0x2000\n    FUP 0x5004\n    TIP.PGD\n",
        "TAB56-009",
    ),
    case(
        "a VM entry that loads the CTL that is there",
        "arch cpl=0 vmx=root vmcs=0x9000\nctl OS User BranchEn\n"
        + BEGIN
        + "vmcs entry_loads=CTL:0x200d\n"
        "vm_entry 0x1000 0x5000\n    PIP 1 0x0\n    TIP 0x5000\n",
        "MSRGEN-005",
    ),
]

ENABLES = [
    case(
        "six results with ranges",
        "ctl User BranchEn ADDR0_CFG=1\nwrite ADDR0_A 0x1000\nwrite ADDR0_B 0x1fff\n"
        + BEGIN
        + "conditional 0x1000 0x1002 0x1010 False\n" * 6
        + "    TNT NNNNNN\n",
        "TNT-008",
    ),
    case(
        "a PSB at the byte where it is due, after a change that nothing tells",
        "ctl User BranchEn MTCEn\nwrite STATUS 0x7f100000000\n"
        + BEGIN
        + "change_mode 0x1000 0x1002 interrupt_flag=False\n"
        "at 40\n    MTC 65\n"
        "conditional 0x1002 0x1004 0x1010 True\n    TNT T\n    PSB\n    CBR 10\n"
        "    MODE.TSX 0 0\n    MODE.Exec 64\n    FUP 0x1010\n    PSBEND\n",
        "PSB-015",
    ),
    case(
        "a buffer is empty after a module",
        "parameters buffer_bytes=256 acm_timing_packets=False\n"
        + KERNEL
        + "acm_begin 0x1000\nacm_end 0x1003\npad 256\n    PAD * 256\n",
        "TXT-004",
    ),
    case(
        "results before a module",
        KERNEL + "conditional 0x1000 0x1002 0x1010 True\nacm_begin 0x1010\n    TNT T\n",
        "TNT-008",
    ),
    case(
        "a module that writes CTL",
        KERNEL + "acm_begin 0x1000\nwrite CTL 0xc\nacm_end 0x1003\n    CBR 10\n"
        "indirect_jump 0x1003 0x2000\n",
        "TXT-004",
    ),
    case(
        "what SENTER drops does not come later",
        KERNEL + "conditional 0x1000 0x1002 0x1010 True\ngetsec 0x1010 0x1013\n"
        "enable 0x1013\n    ...\ndisable 0x1013\n    FUP 0x1013\n    TIP.PGD\n",
        "TXT-001",
    ),
    case(
        "reset",
        "parameters held_bytes=40\nctl User BranchEn\nenable 0x1000\nreset\n"
        "    PSB\n    CBR 10\n    MODE.TSX 0 0\n    PSBEND\n    MODE.Exec 64\n    TIP.PGE 0x1000\n"
        "read 0x38e 0\nread 0xda0 0\n",
        "RST-001",
    ),
    case(
        "CYC before all of its cycle, where PSB+ comes last",
        "parameters psb_on_enable_order=after_pge\nctl User BranchEn CYCEn\nenable 0x1000\n"
        "    CYC 0\n    MODE.Exec 64\n    TIP.PGE 0x1000\n    PSB\n    CBR 10\n"
        "    MODE.TSX 0 0\n    MODE.Exec 64\n    FUP 0x1000\n    PSBEND\n",
        "CYC-016",
    ),
    case(
        "packets of two bytes",
        "parameters pad_align=2\n"
        + USER
        + "conditional 0x1000 0x1002 0x1010 True\nflush\n    TNT T\n    PAD\n",
        "PAD-002",
    ),
    case(
        "a byte that is held back",
        "parameters held_bytes=1\nctl User BranchEn\nenable 0x1000\n"
        "    PSB\n    CBR 10\n    MODE.TSX 0 0\n    PSBEND\n    MODE.Exec 64\n"
        "read OUTPUT_MASK_PTRS OutputOffset=28\n"
        "disable 0x1000\n    TIP.PGE 0x1000\n    FUP 0x1000\n    TIP.PGD\n",
        "TRCEN-007",
    ),
    case(
        "APL11 without an overflow",
        "profile full errata=APL11\n" + USER + "disable 0x1000\n    FUP 0x1000\n    TIP.PGD\n",
    ),
    case(
        "seven results in a mixed form",
        "parameters tnt_form=mixed\n"
        + USER
        + "conditional 0x1000 0x1002 0x1010 False\n" * 7
        + "flush\n    TNT.64 NNNNNNN\n",
        "TNT-010",
    ),
    case(
        "a PSB at the byte where it is due",
        "ctl User BranchEn MTCEn\nwrite STATUS 0x7f100000000   # 2033, and 4 + 2 + 7 + 2\n"
        + BEGIN
        + "at 40\n    MTC 65\nread STATUS PacketByteCnt=2048\n"
        "conditional 0x1000 0x1002 0x1010 True\n    TNT T\n    PSB\n    CBR 10\n"
        "    MODE.TSX 0 0\n    MODE.Exec 64\n    FUP 0x1010\n    PSBEND\n",
        "PSB-015",
    ),
    case(
        "a PSB that does not count itself",
        "parameters psb_counts_itself=False\n"
        + USER
        + "read STATUS PacketByteCnt=5\nconditional 0x1000 0x1002 0x1010 True\n"
        "insert_psb\n    ...\nread STATUS PacketByteCnt=6\n",
        "PSB-015",
    ),
    case(
        "a PSB after the clocks have stopped",
        "parameters psb_extra=wake\nctl User BranchEn PwrEvtEn\n"
        + BEGIN
        + "stop_clocks 0x1000\n    EXSTOP 1\n    FUP 0x1000\n    CBR 10\n    PSB\n    CBR 10\n"
        "    MODE.TSX 0 0\n    MODE.Exec 64\n    FUP 0x1000\n    PSBEND\n",
        "PSB-015",
    ),
]


@pytest.mark.parametrize("text", [*POWER, *OVERFLOW, *TIME, *CONTEXT, *ENABLES])
def test_edge(text: str) -> None:
    result = run(parse(text, "edge"))
    assert result.as_expected, result.report
