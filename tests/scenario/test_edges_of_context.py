"""Edges of rules by one address, or by what may be traced, as scenarios with their packets."""

from __future__ import annotations

import pytest

from rtit.scenario import parse, run
from scenario.edges import BEGIN, KERNEL, USER, case, not_taken

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
        "INIT out of the context sends nothing",
        f"arch cpl=0\nctl User BranchEn\n{BEGIN}init 0x1000 bsp=False\n",
        "PGD-002",
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
        "a linear IP of 32-bit code wraps at 4 GB",
        "arch cpl=0 lma=False cs_l=False cs_d=True cs_base=0xffff0000\n"
        f"ctl OS User BranchEn\n{BEGIN}"
        "indirect_jump 0x20000 0x30010\n    TIP 0x20010\n",
        "CPUID-037",
        "IPC-012",
    ),
    case(
        "a linear IP of 16-bit code wraps at 4 GB",
        "arch cpl=0 lma=False cs_l=False cs_d=False cs_base=0xfffff000\n"
        f"ctl OS User BranchEn\n{BEGIN}"
        "indirect_jump 0x1000 0xfff0\n    TIP 0xeff0\n",
        "CPUID-037",
        "IPC-012",
    ),
    case(
        "clear IA32_RTIT_CTL needs IA32_VMX_MISC[14]",
        "profile full vmx_tracing=False\narch cpl=0 vmx=root vmcs=0x9000\nvmcs clear_ctl=1\n"
        "vm_entry 0x1004 0x2000 next_ip=0x1007 returns=early\n",
    ),
    case(
        "load IA32_RTIT_CTL needs IA32_VMX_MISC[14]",
        "profile full vmx_tracing=False\narch cpl=0 vmx=root vmcs=0x9000\nvmcs load_ctl=0\n"
        "vm_entry 0x1004 0x2000 next_ip=0x1007 returns=early\n",
    ),
    case(
        "VM exit clears IF",
        f"arch cpl=0 vmx=root vmcs=0x9000\nctl OS User BranchEn EventEn\n{BEGIN}"
        "vm_entry 0x1000 0x2000\n    CFE 1 7 0\n    FUP 0x1000\n    PIP 1 0x0\n    TIP 0x2000\n"
        "vm_exit 0x2000 0x3000 reason=1 qualification=7\n"
        "    EVD 1 0x7\n    EVD 2 0x1\n    CFE 0 8 0\n    FUP 0x2000\n"
        "    PIP 0 0x0\n    MODE.Exec 64\n    TIP 0x3000\n",
        "MODE-003",
    ),
    case(
        "the base of CS counts from the change of mode on",
        "arch cpl=0 cs_base=0x10000\nctl OS BranchEn\n"
        + BEGIN
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
        + not_taken(6)
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
        "cold reset clears IA32_XSS",
        "arch cpl=0\nwrite 0xda0 0x100\nread 0xda0 0x100\nreset\nread 0xda0 0\n",
    ),
    case(
        "warm reset ends an overflow, and the next trace is whole",
        KERNEL + "begin_overflow\nreset cold=False\nread CTL 0x200c\nenable 0xfff0\n"
        "    CBR 10\n    MODE.Exec 16\n    TIP.PGE 0xfffffff0\n",
        "RST-001",
    ),
    case(
        "PacketByteCnt shows its low 17 bits",
        "profile full psb_periods=0xff\nctl User BranchEn PSBFreq=7\n"
        "write STATUS 0x1ffff00000000\nenable 0x1000\n"
        "    CBR 10\n    MODE.Exec 64\n    TIP.PGE 0x1000     # 4 + 2 + 7\n"
        "read STATUS 0xc00000007\n",
        "MSRSTS-016",
    ),
    case(
        "an item of four bytes has bit 31",
        USER + "pebs 0x1000 4:0=0x1_8000_0001 four_bytes=True\n"
        "    = 02 63 84 04 01 00 00 80 02 b3 3d 00 10\n",
        "BIP-003",
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
        "parameters tnt_form=mixed\n" + USER + not_taken(7) + "flush\n    TNT.64 NNNNNNN\n",
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
        "a PSB after a branch that is not taken",
        USER + "conditional 0x1000 0x1002 0x1010 False\ninsert_psb\n"
        "    TNT N\n    PSB\n    CBR 10\n    MODE.TSX 0 0\n    MODE.Exec 64\n    FUP 0x1002\n"
        "    PSBEND\n",
        "PSB-009",
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


@pytest.mark.parametrize("text", [*CONTEXT, *ENABLES])
def test_context_edge_case_passes(text: str) -> None:
    result = run(parse(text, "edge"))
    assert result.as_expected, result.report
