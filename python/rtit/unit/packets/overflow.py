"""Internal buffer overflow: OVF (sections 33.3.8, 33.4.1 and 33.4.2.16).

The rules, in one place:

* Bytes reach the output as soon as they are made; a level says how many of them a real buffer would
  still hold. It falls by Parameters.drain_bytes every drain_cycles. An event whose packets do not
  fit loses all of them and begins an overflow. `hints.begin_overflow` begins one by itself.
* While it lasts `Unit.put` drops packets. All else goes on: enables, filters, clocks. The cycle
  counter is not reset.
* It resolves at the end of the first event, or by time out of context, after the level has come
  down to Parameters.ovf_resolve_level; only there is the current IP known. Clearing TraceEn drains
  the buffer, and so resolves it first.
* OVF, with a CYC before it (Parameters.ovf_cyc), then with PacketEn=1 FUP with the current IP.
  Nothing is compressed against what was lost.
* What no packet told, of the event that began the overflow or since (modes, CR3, transaction,
  VMCS), a PSB+ tells, which may follow at any time: Parameters.ovf_psb. RFLAGS.IF with BranchEn=0
  is in no PSB+: MODE.Exec with the current IP tells it. With ContextEn=0 they wait for the context.
* TraceStop in an overflow, or in the event that begins it, ends tracing at once; its packet follows
  OVF: Parameters.tracestop_in_ovf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rtit.packets import encode
from rtit.unit.core import Unit
from rtit.unit.packets import generator, timing
from rtit.unit.packets.compression import NO_LAST_IP
from rtit.unit.state.state import NEVER, Lost

_OVF = encode("OVF")


def drop(_packet: bytes) -> None:
    """In the place of Unit.put while an overflow lasts."""


def has_room(unit: Unit, size: int) -> bool:
    """True, and counted, if `size` more bytes fit the buffer."""
    state, parameters = unit.state, unit.parameters
    passed = state.cycle - state.level_cycle
    # In units of a byte / drain_cycles, so that no fraction is lost.
    level = max(0, state.level - passed * parameters.drain_bytes)
    more = size * parameters.drain_cycles
    fits = level + more <= parameters.buffer_bytes * parameters.drain_cycles
    state.level = level + more if fits else level
    state.level_cycle = state.cycle
    return fits


def begin(unit: Unit, *, until: int = NEVER) -> None:
    """What the event at hand has made is lost, and what follows until core cycle `until`."""
    state = unit.state
    unit.packets.clear()
    unit.put = drop
    state.overflow = Lost(unit.telling.trace_stop)
    unit.telling = state.told
    state.overflow_until = until
    generator.forget(unit)
    state.plain = False
    # No CYC, even if the counter wraps: see `timing`.
    state.cyc_due = NEVER
    state.due = min(state.due, until)


def drained_at(unit: Unit) -> int:
    """The core cycle at which the buffer will have drained so far that an overflow resolves."""
    state, parameters = unit.state, unit.parameters
    if parameters.ovf_resolve == "explicit":
        return NEVER
    excess = state.level - parameters.ovf_resolve_level * parameters.drain_cycles
    return state.level_cycle + max(1, -(-excess // parameters.drain_bytes))


def resolve(unit: Unit, *, ends: bool = False) -> bool:
    """Put OVF and what has to follow it; True if a PSB+ is to follow as well.

    Tracing `ends` with it: no FUP. With erratum SKD010 there is none in any case, with APL12 there
    is one outside the filter range.
    """
    state, configuration = unit.state, unit.configuration
    lost, state.overflow = state.overflow, None
    if lost is None:
        return False
    state.overflow_until = NEVER
    unit.put, unit.telling = unit.packets.extend, state.told
    generator.forget(unit)
    state.last_ip = NO_LAST_IP
    if not state.trigger_en:
        unit.put(_OVF)
        if lost.trace_stop and unit.parameters.tracestop_in_ovf == "delayed":
            generator.trace_stop(unit)
        return False
    timing.after_overflow(unit)
    _cyc(unit)
    unit.put(_OVF)
    mode = generator.mode_bits(unit)
    changed = state.packet_en and state.told.mode != mode
    changed |= state.context_en and any(_untold(unit).values())
    state.owed = not state.context_en
    unit.telling = state.told._replace(mode=mode if state.packet_en and not changed else None)
    if ends:
        return False
    if "SKD010" in unit.errata and state.packet_en:
        return False
    outside = state.context_en and not state.filter_en and configuration.branch_en
    if state.packet_en or (outside and "APL12" in unit.errata):
        generator.fup(unit, state.ip)
        if not state.packet_en:
            # A decoder skips that one.
            state.last_ip = NO_LAST_IP
    elif _events_alone(unit) and state.told.interrupt_flag != state.arch.interrupt_flag:
        generator.mode_exec(unit)
        generator.fup(unit, state.ip)
    return unit.parameters.ovf_psb == "always" or (unit.parameters.ovf_psb == "changed" and changed)


def _events_alone(unit: Unit) -> bool:
    """True where MODE.Exec tells of RFLAGS.IF, and nothing else tells a mode (Table 33-26)."""
    state, configuration = unit.state, unit.configuration
    events = configuration.event_en and not configuration.branch_en
    return events and state.context_en and state.filter_en


def tell_owed(unit: Unit) -> None:
    """An event is under way. If it enters the context, and the last overflow resolved outside,
    what has not been told is.
    """
    state = unit.state
    if not (state.owed and state.context_en and state.overflow is None):
        return
    state.owed = False
    for send, needed in _untold(unit).items():
        if needed:
            generator.flush_tnt(unit)
            timing.eligible(unit)
            send(unit)


def _untold(unit: Unit) -> dict[Callable[[Unit], None], bool]:
    """Packets that tell of the context, and whether what they say is not known (Table 33-14)."""
    told, arch, configuration = unit.telling, unit.state.arch, unit.configuration
    return {
        generator.pip: configuration.os and told.paging != generator.paging(unit),
        generator.vmcs: arch.shows_vmx and told.vmcs != arch.vmcs,
        generator.mode_tsx: configuration.branch_en and told.in_tx != arch.in_tx,
    }


def _cyc(unit: Unit) -> None:
    """The CYC that belongs to OVF; with erratum SKD007 OVF comes in the place of all its bytes but
    the first.
    """
    before, state = len(unit.packets), unit.state
    always = unit.configuration.cyc_en and unit.parameters.ovf_cyc == "always"
    if always and state.cycle > state.cyc_base:
        timing.cyc(unit)
    else:
        timing.eligible(unit)
    if "SKD007" in unit.errata:
        del unit.packets[before + 1 :]


def stopped(unit: Unit) -> None:
    """TraceStop, whose packet is lost or late."""
    state = unit.state
    if state.overflow is not None:
        state.overflow = replace(state.overflow, trace_stop=True)
