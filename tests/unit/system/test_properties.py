"""Random changes between host, guest, SMM and enclave: the trace has only enabled contexts.

The code of the contexts is 64 KB apart, so that an IP identifies its context.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.packets import iterate_packets
from rtit.processor import ArchState, Processor
from rtit.registers import CTL, Msr
from rtit.unit.arch_state import VmxControls
from rtit.unit.memory import Memory
from support.properties import examples

KERNEL, USER, ENCLAVE, GUEST, GUEST_USER = (0x10_0000 * n for n in range(1, 6))
SMM = 0x3_0000
BUFFER = 0x1000_0000
WIDTH = 0x1_0000
STEPS = 40


def inside(ip: int, base: int) -> bool:
    return base <= ip < base + WIDTH


@dataclass
class RandomContexts:
    """A processor that changes contexts at random; `where` is the current one, `back` the target of
    RSM.
    """

    random: Random
    ctl: dict[str, int]
    controls: VmxControls
    out: bytearray = field(default_factory=bytearray)
    where: int = KERNEL
    back: int = KERNEL

    def __post_init__(self) -> None:
        memory = Memory(observer=lambda _, data: self.out.extend(data))
        arch = ArchState(cpl=0, cr3=0x1000, vmx="root", vmcs=0x5000)
        self.cpu = Processor(checked=False, memory=memory, arch=arch)
        self.cpu.set_msr(Msr.OUTPUT_BASE, BUFFER)
        self.cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFFF)

    def enable(self) -> None:
        self.cpu.set_msr(Msr.CTL, CTL.encode(**self.ctl), next_ip=KERNEL)

    def ip(self, base: int | None = None) -> int:
        """Return a random address in the current context."""
        return (self.where if base is None else base) + self.random.randrange(WIDTH // 2)

    def choices(self) -> list[str]:
        common = ["branch"] * 3 + ["conditional"] * 3 + ["psb", "smi"]
        return {
            KERNEL: [*common, "resume", "vm_entry", "cr3"],
            USER: [*common, "syscall", "interrupt", "eenter"],
            ENCLAVE: [*common, "eexit", "aex"],
            GUEST: [*common, "guest_resume", "vm_exit", "cr3"],
            GUEST_USER: [*common, "guest_syscall", "vm_exit"],
            SMM: ["branch", "branch", "conditional", "rsm"],
        }[self.where]

    def step(self) -> None:
        getattr(self, self.random.choice(self.choices()))()

    def branch(self) -> None:
        # In SMM the code is at an offset from the base of CS.
        base = 0x8000 if self.where == SMM else self.where
        self.cpu.indirect_jump(self.ip(base), self.ip(base))

    def conditional(self) -> None:
        base = 0x8000 if self.where == SMM else self.where
        ip = self.ip(base)
        self.cpu.conditional(ip, ip + 2, ip + 16, self.random.random() < 0.5)

    def psb(self) -> None:
        self.cpu.retire(self.ip())
        self.cpu.unit.insert_psb()

    def cr3(self) -> None:
        self.cpu.mov_cr3(self.ip(), self.ip(), 0x1000 * self.random.randrange(1, 9))

    def resume(self) -> None:
        self.cpu.resume(self.ip(USER))
        self.where = USER

    def syscall(self) -> None:
        self.cpu.syscall(self.ip(), self.ip(KERNEL))
        self.where = KERNEL

    def interrupt(self) -> None:
        self.cpu.interrupt(self.ip(), self.ip(KERNEL), vector=0x20)
        self.where = KERNEL

    def guest_resume(self) -> None:
        self.cpu.resume(self.ip(GUEST_USER))
        self.where = GUEST_USER

    def guest_syscall(self) -> None:
        self.cpu.syscall(self.ip(), self.ip(GUEST))
        self.where = GUEST

    def eenter(self) -> None:
        self.cpu.eenter(self.ip(), self.ip(ENCLAVE))
        self.where = ENCLAVE

    def eexit(self) -> None:
        self.cpu.eexit(self.ip(), self.ip(USER))
        self.where = USER

    def aex(self) -> None:
        self.cpu.aex(self.ip(), self.ip(USER), self.ip(KERNEL), vector=0x20)
        self.where = KERNEL

    def vm_entry(self) -> None:
        self.cpu.vm_entry(self.ip(), self.ip(GUEST), controls=self.controls, cr3=0x7000)
        self.where = GUEST

    def vm_exit(self) -> None:
        self.cpu.vm_exit(self.ip(), self.ip(KERNEL), reason=10)
        self.where = KERNEL

    def smi(self) -> None:
        self.back = USER if self.where == ENCLAVE else self.where
        aep = self.ip(self.back) if self.where == ENCLAVE else None
        self.cpu.smi(self.ip(), aep=aep)
        self.where = SMM

    def rsm(self) -> None:
        self.cpu.rsm()
        self.where = self.back

    def contexts(self) -> set[int]:
        """Return the contexts of the IPs in the trace; assert that the enables agree with them."""
        seen: set[int] = set()
        last_ip, enabled, in_psb = 0, False, False
        for packet in iterate_packets(bytes(self.out)):
            fields: dict[str, Any] = dict(packet.fields)
            name = packet.name
            if name == "PSB":
                last_ip, in_psb = 0, True
            elif name == "PSBEND":
                in_psb = False
            elif name == "TIP.PGE":
                assert not enabled
            elif name in ("TIP", "TIP.PGD", "TNT"):
                assert enabled
            if name in ("TIP.PGE", "TIP.PGD"):
                enabled = name == "TIP.PGE"
            if name in ("TIP", "TIP.PGE", "TIP.PGD", "FUP") and fields["ip_bytes"]:
                last_ip = decompress_ip(fields["ip_bytes"], fields["payload"], last_ip)
                seen.add(context_of(last_ip))
                assert name != "FUP" or enabled or self.ctl["EventEn"] or in_psb
        return seen


def decompress_ip(ip_bytes: int, payload: int, last_ip: int) -> int:
    """Return the full IP (Table 33-18), for addresses below 2^47."""
    kept = {1: 16, 2: 32, 3: 48, 4: 48, 6: 64}[ip_bytes]
    return last_ip >> kept << kept | payload


def context_of(ip: int) -> int:
    if SMM <= ip < SMM + 2 * WIDTH:
        return SMM
    return next(base for base in (KERNEL, USER, ENCLAVE, GUEST, GUEST_USER) if inside(ip, base))


@st.composite
def walks(draw: st.DrawFn) -> RandomContexts:
    flag = st.integers(0, 1)
    ctl = {"TraceEn": 1, "OS": draw(flag), "User": draw(flag), "BranchEn": 1}
    ctl |= {"EventEn": draw(flag), "TSCEn": draw(flag), "MTCEn": draw(flag), "CYCEn": draw(flag)}
    mode = draw(st.sampled_from(("system", "guest", "vmm")))
    conceal: dict[str, Any] = {
        name: draw(st.booleans()) for name in ("conceal_execution", "conceal_entry", "conceal_exit")
    }
    on, off = CTL.encode(**ctl), CTL.encode(**(ctl | {"TraceEn": 0}))
    all_lists: dict[str, dict[str, Any]] = {
        "system": {},
        "guest": {"load_ctl": on, "clear_ctl": draw(st.booleans())},
        "vmm": {"entry_loads": ((Msr.CTL, off),), "exit_loads": ((Msr.CTL, on),)},
    }
    lists = all_lists[mode]
    if mode == "guest" and not lists["clear_ctl"]:
        lists["exit_loads"] = ((Msr.CTL, off),)
    machine = RandomContexts(
        Random(draw(st.integers(0, 1 << 32))), ctl, VmxControls(**conceal, **lists)
    )
    if mode != "guest":
        machine.enable()
    return machine


@pytest.mark.spec("SMM-007", "SGX-003", "EN-011", "VMX-008")
@given(walks())
def test_trace_has_no_ip_outside_enabled_contexts(machine: RandomContexts) -> None:
    for _ in range(STEPS):
        machine.step()
    machine.cpu.set_msr(Msr.CTL, 0, ip=machine.ip())
    allowed: set[int] = set()
    system = {KERNEL} if machine.ctl["OS"] else set()
    user = {USER} if machine.ctl["User"] else set()
    guest = {GUEST} if machine.ctl["OS"] else set()
    guest |= {GUEST_USER} if machine.ctl["User"] else set()
    if machine.controls.load_ctl is not None:
        allowed = guest
    elif machine.controls.entry_loads:
        allowed = system | user
    else:
        allowed = system | user | guest
    assert machine.contexts() <= allowed


@pytest.mark.spec("VMX-013")
@given(walks())
@examples(40)
def test_restored_unit_continues_identically(machine: RandomContexts) -> None:
    """A unit restored in any context writes the same packets."""
    for _ in range(STEPS // 2):
        machine.step()
    snapshot, length = machine.cpu.unit.snapshot(), len(machine.out)
    address, back, random = machine.where, machine.back, machine.random.getstate()
    for _ in range(STEPS // 2):
        machine.step()
    first, end = bytes(machine.out[length:]), machine.cpu.unit.snapshot()
    del machine.out[length:]
    machine.cpu.unit.restore(snapshot)
    assert machine.cpu.unit.snapshot() == snapshot
    machine.where, machine.back = address, back
    machine.random.setstate(random)
    for _ in range(STEPS // 2):
        machine.step()
    assert machine.out[length:] == first
    assert machine.cpu.unit.snapshot() == end
