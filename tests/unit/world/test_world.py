"""Properties of every trace of a random world, under all settings (see `world`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.packets import Packet, iterate_packets
from rtit.registers import STATUS, Msr
from rtit.unit.parameters.table import Parameters
from support.properties import examples
from unit.world.plans import forms, plans
from unit.world.program import BUFFER, ENCLAVE, GUEST, KERNEL, SIZE, Plan, area
from unit.world.reader import Reader, split
from unit.world.world import World


def followed(world: World, part: list[Packet], *, after_overflow: bool = False) -> Reader:
    reader = Reader(world.program, after_overflow=after_overflow)
    reader.feed(part)
    return reader


@pytest.mark.spec("DTIP-001")
@given(plans())
def test_packets_decode_to_the_executed_path(plan: Plan) -> None:
    world = World(plan)
    (part,) = split(world.run())
    assert followed(world, part).path == world.truth


@pytest.mark.spec("OVF-001", "OVF-002", "OVF-003")
@given(plans(overflows=True))
def test_packets_decode_to_the_path_around_overflows(plan: Plan) -> None:
    world = World(plan)
    parts = split(world.run())
    assert len(parts) == len(world.pieces)
    for number, (part, (first, last)) in enumerate(zip(parts, world.pieces, strict=True)):
        path = followed(world, part, after_overflow=number > 0).path
        assert path == world.truth[first : first + len(path)]
        assert len(path) <= last - first
    # Parts that ended without an overflow are complete.
    assert len(path) == last - first


@pytest.mark.spec("PSB-002", "PSB-017", "PSB-018")
@examples(40)
@given(st.booleans().flatmap(lambda overflows: plans(overflows=overflows)))
def test_decoding_can_start_at_every_psb(plan: Plan) -> None:
    world = World(plan)
    for number, part in enumerate(split(world.run())):
        whole = followed(world, part, after_overflow=number > 0)
        psb_indexes = [index for index, packet in enumerate(part) if packet.name == "PSB"]
        for psb_index, position in zip(psb_indexes, whole.psb_positions, strict=False):
            assert followed(world, part[psb_index:]).path == whole.path[position:]


@pytest.mark.spec("EN-011", "FCPL-002", "SMM-007")
@examples(40)
@given(st.booleans().flatmap(lambda overflows: plans(overflows=overflows)))
def test_trace_has_no_ip_outside_enabled_contexts(plan: Plan) -> None:
    world = World(plan)
    allowed = {base for base in map(area, world.program) if world.plan.ctl[level(base)]}
    for number, part in enumerate(split(world.run())):
        reader = followed(world, part, after_overflow=number > 0)
        assert {area(ip) for ip in reader.packet_ips} <= allowed


def level(base: int) -> str:
    return "OS" if base in (KERNEL, GUEST) else "User"


@pytest.mark.spec("SGX-001", "SGX-003")
@examples(20)
@given(plans())
def test_trace_has_no_ip_of_an_enclave_that_opted_out(plan: Plan) -> None:
    world = World(replace(plan, opt_in=0.0))
    (part,) = split(world.run())
    assert ENCLAVE not in {area(ip) for ip in followed(world, part).packet_ips}


@pytest.mark.spec("CYC-001", "CYC-006", "CYC-007")
@examples(40)
@given(plans())
def test_cyc_counts_sum_to_all_active_cycles(plan: Plan) -> None:
    """Sleep, stopped clocks and SMM do not count: no core cycle of tracing passes there."""
    world = World(replace(plan, ctl=plan.ctl | {"CYCEn": 1}))
    total = sum(
        int(str(p.fields["cycles"])) for p in iterate_packets(world.run()) if p.name == "CYC"
    )
    gap = max(1, (1 << plan.ctl["CycThresh"]) >> 1)
    if gap == 1:
        assert total == sum(world.active)
    else:
        assert 0 <= sum(world.active) - total < gap * max(1, len(world.active))


@pytest.mark.spec("MSRSTS-016", "MSRSTS-017")
@examples(30)
@given(st.booleans().flatmap(lambda overflows: plans(overflows=overflows)))
def test_packet_byte_count_gives_the_psb_period(plan: Plan) -> None:
    world = World(plan)
    out = world.run()
    count = STATUS.decode(world.cpu.get_msr(Msr.STATUS)).PacketByteCnt
    assert count % 2048 == len(out) % 2048


@pytest.mark.spec("TOPA-002", "TOPA-006", "TRCEN-003")
@examples(30)
@given(plans(), st.lists(st.sampled_from((4096, 8192)), max_size=3))
def test_memory_contains_the_emitted_stream(plan: Plan, sizes: list[int]) -> None:
    """In the single range directly, in a circular table by regions."""
    world = World(replace(plan, regions=tuple(sizes), steps=900))
    out = world.run()
    memory = world.cpu.unit.output.memory
    if not sizes:
        assert memory.read(BUFFER, len(out)) == out
        return
    # The table itself is not part of the stream.
    image = [bytearray(size) for size in sizes]
    number = offset = 0
    for byte in out:
        image[number][offset] = byte
        offset += 1
        if offset == sizes[number]:
            number, offset = (number + 1) % len(sizes), 0
    assert [memory.read(BUFFER + n * SIZE, size) for n, size in enumerate(sizes)] == image
    assert world.cpu.get_msr(Msr.OUTPUT_MASK_PTRS) == offset << 32 | number << 7 | 0x7F


@examples(40)
@given(plans(), forms())
def test_parameters_of_form_do_not_change_the_path(plan: Plan, form: dict[str, Any]) -> None:
    """Two units report the same path and the same payloads of one run."""
    one = World(plan)
    two = World(replace(plan, parameters=Parameters(**form)))
    (first,), (second,) = split(one.run()), split(two.run())
    assert one.truth == two.truth
    assert followed(one, first).path == followed(two, second).path
    assert one.active == two.active
    assert one.cpu.arch == two.cpu.arch
    assert facts(first) == facts(second)


def facts(part: list[Packet]) -> list[tuple[Any, ...]]:
    """Return payloads outside PSB+ that form must not change: software's data, events, power."""
    kept = ("PTW", "CFE", "MWAIT", "PWRE", "PWRX", "MODE.TSX", "PIP", "VMCS")
    found = []
    in_psb = False
    for packet in part:
        if packet.name in ("PSB", "PSBEND"):
            in_psb = packet.name == "PSB"
        elif packet.name in kept and not in_psb:
            found.append((packet.name, *packet.fields.values()))
    return found


@pytest.mark.spec("VMX-013")
@given(
    st.booleans().flatmap(lambda overflows: plans(overflows=overflows)),
    st.integers(0, 200),
    st.booleans(),
)
def test_restored_unit_continues_identically(plan: Plan, steps: int, fresh: bool) -> None:
    """Restored at any point, the same unit or another one writes the same bytes."""
    world = World(plan)
    with world.watched():
        world.enable()
        world.go(steps)
        before = world.cpu.unit.snapshot()
        kept = {name: copied(value) for name, value in vars(world).items()}
        dice = world.random.getstate()
        del world.out[:]
        world.go(100)
        first, after = bytes(world.out), world.cpu.unit.snapshot()

        del world.out[:]
        out, cpu = world.out, world.processor() if fresh else world.cpu
        vars(world).update(kept)
        world.out, world.cpu = out, cpu
        world.random.setstate(dice)
        cpu.unit.restore(before)
        assert cpu.unit.snapshot() == before
        assert before.state.diff(cpu.unit.state) == {}
        world.go(100)
    assert bytes(world.out) == first
    assert world.cpu.unit.snapshot() == after


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value
