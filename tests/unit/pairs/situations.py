"""Situations that can overlap: a generator begins one, and ends it at the next `next`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from unit.pairs.machine import PSB_PERIOD, REGION, Machine
from unit.pairs.reference import MATCH
from unit.world.program import ENCLAVE, GUEST, GUEST_USER, KERNEL, STEP, USER, area

Situation = Callable[[Machine], Iterator[None]]


def overflow(m: Machine) -> Iterator[None]:
    """An overflow on request, or because of a full buffer, which drains by itself."""
    if m.plan.parameters.buffer_bytes:
        m.cpu.unit.pad(m.plan.parameters.buffer_bytes)
    else:
        m.cpu.unit.begin_overflow()
    m.check()
    yield
    m.end_overflow()


def trace_stop(m: Machine) -> Iterator[None]:
    m.bring(KERNEL, slot=15)
    yield
    home(m)
    if m.now.stopped or m.now.cut:
        m.again()


def fill(m: Machine) -> Iterator[None]:
    """The current region is nearly full."""
    output = m.cpu.unit.output.state
    left = REGION - output.output_offset - m.random.randrange(1, 24)
    if left > 0 and output.region_size == REGION:
        m.cpu.unit.pad(left)
        m.check()
    yield
    home(m)
    if m.now.cut:
        m.again()


def psb_due(m: Machine) -> Iterator[None]:
    left = PSB_PERIOD - m.cpu.unit.state.packet_byte_count % PSB_PERIOD - m.random.randrange(1, 24)
    if left > 0 and m.away is None:
        m.cpu.retire(m.ip)
        m.cpu.unit.pad(left)
        m.check()
    yield


def filter_edge(m: Machine) -> Iterator[None]:
    m.bring(KERNEL, slot=m.random.randrange(12, 20))
    yield
    home(m)
    m.bring(m.random.choice((KERNEL, USER)), slot=m.random.randrange(11))


def transaction(m: Machine) -> Iterator[None]:
    m.bring(*m.random.choice(((USER, "xbegin"), (GUEST, "xbegin"))))
    m.step()
    m.check()
    yield
    if m.cpu.arch.in_tx and m.away is None:
        m.do(m.cpu.abort_transaction, m.ip, m.find_instruction(area(m.ip), "far", None))


def deferred_tip(m: Machine) -> Iterator[None]:
    m.bring(m.random.choice((KERNEL, USER)), "indirect_jump")
    m.step()
    m.check()
    yield


def smm(m: Machine) -> Iterator[None]:
    if m.shape.stm:
        yield from stm(m)
        return
    if m.cpu.arch.in_tx:
        m.do(m.cpu.abort_transaction, m.ip, m.find_instruction(area(m.ip), "far", None))
    m.pass_entries()
    back = m.outside()
    m.cpu.smi(m.ip, aep=back if m.cpu.arch.in_enclave else None)
    m.away = "smm"
    m.check()
    yield
    m.cpu.rsm()
    m.away, m.ip = None, back
    m.check()


def stm(m: Machine) -> Iterator[None]:
    """The monitor executes only the VM entry that returns."""
    if m.cpu.arch.in_tx:
        m.do(m.cpu.abort_transaction, m.ip, m.find_instruction(area(m.ip), "far", None))
    m.pass_entries()
    back = m.outside()
    m.away = "stm"
    m.do(m.cpu.smm_vm_exit, m.ip, m.find_instruction(KERNEL, "vm_entry", None))
    yield
    m.note()
    m.away = None
    m.do(m.cpu.smm_vm_entry, m.ip, back)


def senter(m: Machine) -> Iterator[None]:
    """Pending packets and the end of the trace are lost."""
    m.bring(KERNEL)
    m.cpu.getsec(m.ip, m.ip)
    assert not m.cpu.unit.registers.trace_en
    m.check()
    yield
    home(m)
    if m.now.cut:
        m.again()


def vm_transition(m: Machine) -> Iterator[None]:
    m.bring(GUEST)
    yield
    home(m)
    m.bring(KERNEL)


def xsaves(m: Machine) -> Iterator[None]:
    m.bring(KERNEL)
    component = m.cpu.xsaves(m.ip, m.ip)
    m.away = "xsaves"
    m.check()
    yield
    m.cpu.xrstors(m.ip, m.ip, component)
    m.away = None
    m.check()


def another_thread(m: Machine) -> Iterator[None]:
    """Its PT state is the initial one, so that it is not traced."""
    m.bring(KERNEL)
    component = m.cpu.xsaves(m.ip, m.ip)
    m.away = "another thread"
    m.now.processor.xrstors(m.ip, m.ip, None)
    m.check()
    yield
    m.now.processor.xsaves(m.ip, m.ip)
    m.away = None
    m.cpu.xrstors(m.ip, m.ip, component)
    m.check()


def acm(m: Machine) -> Iterator[None]:
    m.bring(KERNEL)
    m.cpu.acm_begin(m.ip)
    m.away = "acm"
    m.check()
    yield
    m.cpu.acm_end(m.ip)
    m.away = None
    m.check()


def sleep(m: Machine) -> Iterator[None]:
    m.bring(KERNEL)
    m.cpu.mwait(m.ip, m.ip, 0x20)
    m.away = "asleep"
    m.check()
    yield
    m.cpu.wake(last=2, deepest=2, ticks=m.random.choice((0, 700)))
    m.away = None
    m.check()


def cr3_filter(m: Machine) -> Iterator[None]:
    for value in (0x1000 * m.random.randrange(1, 5), MATCH):
        m.bring(KERNEL, "cr3")
        m.note()
        m.do(m.cpu.mov_cr3, m.ip, m.ip + STEP, value)
        if value != MATCH:
            yield
            home(m)


def cpl_filter(m: Machine) -> Iterator[None]:
    m.bring(USER)
    yield
    home(m)
    m.bring(KERNEL)


def power_events(m: Machine) -> Iterator[None]:
    """Events of power and event trace, without a sleep."""
    if m.away is None:
        m.bring(KERNEL)
        m.cpu.stop_clocks(m.ip, ticks=100)
        m.check()
        m.bring(KERNEL)
    else:
        m.cpu.change_frequency(8)
        m.check()
    yield


def pebs(m: Machine) -> Iterator[None]:
    if m.away is None:
        m.pebs()
        m.check()
    yield


def home(m: Machine) -> None:
    """Move where events of all kinds can occur, if the processor runs."""
    if m.away is None and area(m.ip) in (ENCLAVE, GUEST_USER):
        m.bring(KERNEL)


SITUATIONS: dict[str, Situation] = {
    "overflow": overflow,
    "trace_stop": trace_stop,
    "topa_stop": fill,
    "topa_pmi": fill,
    "topa_error": fill,
    "psb_due": psb_due,
    "filter_edge": filter_edge,
    "transaction": transaction,
    "deferred_tip": deferred_tip,
    "smm": smm,
    "stm": stm,
    "senter": senter,
    "vm_transition": vm_transition,
    "xsaves": xsaves,
    "another_thread": another_thread,
    "acm": acm,
    "sleep": sleep,
    "cr3_filter": cr3_filter,
    "cpl_filter": cpl_filter,
    "power_events": power_events,
    "pebs": pebs,
}

ANYWHERE = ("overflow", "psb_due", "power_events", "pebs")
"""Situations that can begin and end while code of another kind, or none, runs."""

AWAY = ("smm", "stm", "xsaves", "another_thread", "acm", "sleep")
"""Situations in which only these can begin."""
