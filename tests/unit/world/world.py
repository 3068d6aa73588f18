"""A processor with several programs: user, kernel, enclave, guest and its user, and SMM.

Each has separate code, so that an IP identifies its program. All events that the trace unit can
report occur at random. `World` executes and records the truth; `Reader` decodes packets by the
binding rules of section 33.4.2, and shares only the packet table with the unit.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

from rtit.processor import ArchState, Processor
from rtit.registers import CTL, Msr
from rtit.unit import overflow
from rtit.unit.arch_state import VmxControls
from rtit.unit.events.xsave import IA32_XSS, PT_STATE
from rtit.unit.memory import Memory
from rtit.unit.output import TopaEntry, write_topa_table
from rtit.unit.overflow import emit_overflow_packets, start_overflow
from unit.world.program import (
    BUFFER,
    ENCLAVE,
    GUEST,
    GUEST_USER,
    KERNEL,
    LENGTH,
    NEAR,
    OWN,
    SIZE,
    STEP,
    STRAIGHT,
    TABLE,
    USER,
    WITH_FUP,
    Plan,
    area,
    make_program,
)


class World:
    """Executes the programs.

    `truth`: the IPs of instructions that began while the filters admitted them; `pieces`: the parts
    of it between overflows, as first and last index; `begun`: the index of the current instruction;
    `active`: cycles of each period of tracing.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        self.program = make_program(self.random)
        self.out = bytearray()
        self.cpu = self.processor()
        self.install()
        self.cpu.set_msr(IA32_XSS, PT_STATE)
        self.controls = VmxControls(**plan.conceal)  # type: ignore[arg-type]
        self.clock, self.started = 0, 0
        self.ip, self.traced = KERNEL, False
        self.opted_in = False
        self.calls: dict[int, list[int]] = {base: [] for base in OWN}
        self.truth: list[int] = []
        self.begun, self.sleeping = 0, False
        self.pieces = [[0, 0]]
        self.active: list[int] = []

    def processor(self) -> Processor:
        return Processor(
            memory=Memory(observer=lambda _, data: self.out.extend(data)),
            parameters=self.plan.parameters,
            arch=ArchState(cpl=0, cr3=0x5000, vmx="root", vmcs=0x9000),
        )

    def install(self) -> None:
        """Set up a single range, or a circular table with a region of each size."""
        self.cpu.set_msr(Msr.OUTPUT_BASE, TABLE if self.plan.regions else BUFFER)
        if not self.plan.regions:
            self.cpu.set_msr(Msr.OUTPUT_MASK_PTRS, SIZE - 1)
            return
        entries = [TopaEntry(BUFFER + n * SIZE, size) for n, size in enumerate(self.plan.regions)]
        write_topa_table(self.cpu.unit.output.memory, TABLE, [*entries, TopaEntry(TABLE, end=True)])

    def run(self) -> bytes:
        """Return the stream of the whole plan; TraceEn is 0 at the end."""
        with self.watched():
            self.enable()
            self.go(self.plan.steps)
            # See WITH_FUP.
            while self.program[self.ip][0] in WITH_FUP:
                self.step()
            if self.traced:
                self.disable()
        self.pieces[-1][1] = len(self.truth)
        return bytes(self.out)

    def watched(self) -> Any:
        """Record overflows in `pieces` while the context is active."""
        begin, resolve = start_overflow, emit_overflow_packets

        def begins(core: Any, **named: Any) -> None:
            self.pieces[-1][1] = len(self.truth)
            begin(core, **named)

        def resolves(core: Any, **named: Any) -> bool:
            # MWAIT sleeps before it completes: its address is known first.
            self.pieces.append([self.begun if self.sleeping else len(self.truth), 0])
            return resolve(core, **named)

        return patch.multiple(overflow, start_overflow=begins, emit_overflow_packets=resolves)

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    # Tracing, literally by section 33.2.6

    def enable(self) -> None:
        ctl = {"ToPA": 1} if self.plan.regions else {}
        self.cpu.set_msr(Msr.CTL, CTL.encode(TraceEn=1, **self.plan.ctl, **ctl), next_ip=self.ip)
        self.traced, self.started = True, self.clock

    def disable(self) -> None:
        self.cpu.set_msr(Msr.CTL, 0, ip=self.ip)
        self.ended()

    def ended(self) -> None:
        self.traced = False
        self.active.append(self.clock - self.started)

    def allowed(self, base: int) -> bool:
        if base == ENCLAVE and not self.opted_in:
            return False
        return bool(self.plan.ctl["OS" if base in (KERNEL, GUEST) else "User"])

    # Execution

    def step(self) -> None:
        random = self.random
        self.clock += random.choice((0, 1, 1, 3, 40, 900)) if random.random() < 0.2 else 1
        self.cpu.at(self.clock)
        kind, target = self.program[self.ip]
        choice = random.random()
        if random.random() < self.plan.overflows:
            self.toggle_overflow()
        if choice < 0.15 and kind not in WITH_FUP:
            self.happen()
            return
        if self.cpu.arch.in_tx and kind not in (*NEAR, *STRAIGHT):
            self.abort()
            return
        self.begun = len(self.truth)
        if self.traced and self.allowed(area(self.ip)):
            self.truth.append(self.ip)
        self.execute(kind, target)

    def toggle_overflow(self) -> None:
        if self.cpu.unit.state.overflow is None:
            self.cpu.unit.begin_overflow()
        else:
            self.cpu.unit.end_overflow(self.ip)

    def happen(self) -> None:
        """Run an external event before the instruction at `ip`."""
        if self.cpu.arch.in_tx:
            self.random.choice((self.abort, self.pebs, self.psb))()
            return
        events: list[Callable[[], None]] = [self.psb, self.pebs, self.smi, self.clocks]
        events += [self.switch] if self.random.random() < 0.2 else []
        here = area(self.ip)
        events += [self.save_and_restore] if here in (KERNEL, GUEST) else []
        if here in (GUEST, GUEST_USER):
            events += [self.vm_exit, self.vm_exit]
        elif here == ENCLAVE:
            events += [self.aex, self.aex]
        else:
            events += [self.interrupt, self.interrupt]
        self.random.choice(events)()

    def psb(self) -> None:
        self.cpu.retire(self.ip)
        self.cpu.unit.insert_psb()

    def pebs(self) -> None:
        self.cpu.pebs(self.ip, {4: [(0, self.ip)], 1: [(1, 5), (2, 6)]})

    def clocks(self) -> None:
        ticks = self.random.choice((0, 100, 5000))
        self.cpu.retire(self.ip)
        if self.random.random() < 0.5:
            self.cpu.stop_clocks(self.ip, ticks=ticks)
        else:
            self.cpu.change_frequency(self.random.choice((8, 10, 20)))

    def switch(self) -> None:
        self.cpu.retire(self.ip)
        (self.disable if self.traced else self.enable)()

    def save_and_restore(self) -> None:
        """Suspend the trace by XSAVES, run code without it, and resume it by XRSTORS."""
        was = self.traced
        component = self.cpu.xsaves(self.ip, self.ip)
        if was:
            self.ended()
        self.cpu.far(self.ip, self.ip)
        self.clock += self.random.choice((0, 300))
        self.cpu.at(self.clock)
        self.cpu.xrstors(self.ip, self.ip, component)
        if was:
            self.traced, self.started = True, self.clock

    def outside(self) -> int:
        """Return where execution continues after an event that leaves an enclave, if one runs."""
        return self.anywhere(USER) if area(self.ip) == ENCLAVE else self.ip

    def smi(self) -> None:
        back = self.outside()
        self.cpu.smi(self.ip, aep=back if self.cpu.arch.in_enclave else None)
        self.ip = back
        was = self.traced
        if was:
            self.ended()
        self.cpu.indirect_jump(0x8000, 0x8100)
        self.clock += self.random.choice((0, 500))
        self.cpu.at(self.clock)
        self.cpu.rsm()
        if was:
            self.traced, self.started = True, self.clock

    def vm_exit(self) -> None:
        target = self.anywhere(KERNEL)
        vector = self.random.choice((None, 14))
        self.cpu.vm_exit(self.ip, target, reason=1, qualification=7, vector=vector)
        self.ip = target

    def aex(self) -> None:
        target = self.anywhere(KERNEL)
        self.cpu.aex(self.ip, self.anywhere(USER), target, vector=3)
        self.ip = target

    def interrupt(self) -> None:
        target = self.anywhere(KERNEL)
        more: dict[str, Any] = {}
        if self.random.random() < 0.3:
            more["cr3"] = 0x1000 * self.random.randrange(1, 9)
        if self.random.random() < 0.5:
            self.cpu.exception(self.ip, target, vector=14, cr2=self.ip, **more)
        else:
            self.cpu.interrupt(self.ip, target, vector=0x20, **more)
        self.ip = target

    def abort(self) -> None:
        target = self.anywhere(area(self.ip))
        self.cpu.abort_transaction(self.ip, target)
        self.ip = target

    def anywhere(self, base: int) -> int:
        return base + STEP * self.random.randrange(LENGTH + 1)

    def execute(self, kind: str, target: int) -> None:
        cpu, ip, following, here = self.cpu, self.ip, self.ip + STEP, area(self.ip)
        self.ip = following
        if kind == "conditional":
            taken = self.random.random() < 0.5
            cpu.conditional(ip, following, target, taken)
            self.ip = target if taken else following
        elif kind == "jump":
            cpu.jump(ip, target)
            self.ip = target
        elif kind == "call":
            cpu.call(ip, following, target)
            if target != following:
                self.calls[here].append(following)
            self.ip = target
        elif kind in STRAIGHT or kind == "cr3":
            self.straight(kind, ip, following)
        else:
            self.leave(kind, ip, here)

    def straight(self, kind: str, ip: int, following: int) -> None:
        cpu = self.cpu
        if kind == "ptwrite":
            cpu.ptwrite(ip, following, self.random.randrange(1 << 32), 8)
        elif kind == "mwait":
            self.sleeping = True
            cpu.mwait(ip, following, 0x20)
            self.sleeping = False
            cpu.wake(last=2, deepest=2, ticks=self.random.choice((0, 700)))
        elif kind == "cli":
            cpu.change_mode(ip, following, interrupt_flag=self.random.random() < 0.5)
        elif kind == "xbegin":
            cpu.begin_transaction(ip, following)
        elif kind == "xend" and cpu.arch.in_tx:
            cpu.end_transaction(ip, following)
        elif kind == "cr3":
            cpu.mov_cr3(ip, following, 0x1000 * self.random.randrange(1, 9))
        else:
            cpu.retire(following)

    def leave(self, kind: str, ip: int, here: int) -> None:
        cpu = self.cpu
        self.ip = target = self.anywhere(here)
        if kind == "ret":
            own = self.calls[here]
            if own and self.random.random() < 0.95:
                self.ip = target = own.pop()
            cpu.ret(ip, target)
        elif kind == "indirect_call":
            self.calls[here].append(ip + STEP)
            cpu.indirect_call(ip, ip + STEP, target)
        elif kind in ("indirect_jump", "far"):
            getattr(cpu, kind)(ip, target)
        else:
            self.change(kind, ip, here)

    def change(self, kind: str, ip: int, here: int) -> None:
        cpu = self.cpu
        guest = here in (GUEST, GUEST_USER)
        if kind == "syscall":
            self.ip = self.anywhere(GUEST if guest else KERNEL)
            cpu.syscall(ip, self.ip)
        elif kind == "resume":
            self.ip = self.anywhere(GUEST_USER if guest else USER)
            cpu.resume(self.ip)
        elif kind == "eenter":
            self.ip, self.opted_in = self.anywhere(ENCLAVE), self.random.random() < self.plan.opt_in
            cpu.eenter(ip, self.ip, debug=self.opted_in)
        elif kind == "eexit":
            self.ip = self.anywhere(USER)
            cpu.eexit(ip, self.ip)
        else:
            self.ip = self.anywhere(GUEST)
            cpu.vm_entry(ip, self.ip, controls=self.controls, cr3=0x7000)
