"""Random programs on a random processor decode to the executed path under all settings.

The layout of a program is fixed; a run takes random branches.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.processor import Processor
from rtit.registers import STATUS, Msr
from rtit.unit.memory import Memory
from support.properties import examples
from unit.execution.program import BUFFER, KERNEL, Settings, all_settings, region_address
from unit.execution.run import Run, trace_program
from unit.pairs.reader import FilterReader


@given(all_settings())
def test_packets_decode_to_the_executed_path(chosen: Settings) -> None:
    run, stream, _ = trace_program(chosen)
    reader = FilterReader(run.program)
    reader.feed(stream)
    assert reader.path == run.truth


@pytest.mark.spec("PSB-002", "PSB-017", "PSB-018")
@examples(40)
@given(all_settings())
def test_decoding_can_start_at_every_psb(chosen: Settings) -> None:
    run, stream, _ = trace_program(chosen)
    whole = FilterReader(run.program)
    whole.feed(stream)
    psb_indexes = [index for index, packet in enumerate(stream) if packet.name == "PSB"]
    for index, position in zip(psb_indexes, whole.psb_positions, strict=True):
        part = FilterReader(run.program)
        part.feed(stream[index:])
        assert part.path == whole.path[position:]


@pytest.mark.spec("EN-011", "FCPL-002")
@examples(40)
@given(all_settings())
def test_trace_has_no_ip_of_a_filtered_level(chosen: Settings) -> None:
    run, stream, _ = trace_program(chosen)
    reader = FilterReader(run.program)
    for packet in stream:
        if packet.name == "PSB":
            reader.last_ip = 0
        if "ip_bytes" in packet.fields:
            ip = reader.address(dict(packet.fields))
            if ip is not None:
                assert chosen.ctl["OS" if ip >= KERNEL else "User"]


@pytest.mark.spec("CYC-001", "CYC-006", "CYC-007", "CYC-013", "CYC-014")
@examples(40)
@given(all_settings())
def test_cyc_counts_sum_to_all_active_cycles(chosen: Settings) -> None:
    run, stream, _ = trace_program(chosen)
    cycles = [int(str(p.fields["cycles"])) for p in stream if p.name == "CYC"]
    total = sum(cycles)
    # A second CYC in the same cycle would say 0; the first of a trace may.
    assert cycles.count(0) <= len(run.active)
    if not chosen.ctl["CYCEn"]:
        assert total == 0
    elif chosen.ctl["CycThresh"] == 0:
        assert total == sum(run.active)
    else:
        assert 0 <= sum(run.active) - total < chosen.gap * max(1, len(run.active))


@pytest.mark.spec("MSRSTS-016", "MSRSTS-017", "PSB-015")
@examples(40)
@given(all_settings())
def test_packet_byte_count_gives_the_psb_period(chosen: Settings) -> None:
    run, stream, out = trace_program(chosen)
    count = STATUS.decode(run.cpu.get_msr(Msr.STATUS)).PacketByteCnt
    assert count % 2048 == len(out) % 2048
    # At least one PSB for each period before the last event, with any delay.
    psbs = sum(packet.name == "PSB" for packet in stream)
    assert psbs >= len(out) // (2048 + chosen.parameters.psb_delay + 200)
    # While TraceEn is 0 the count stands still.
    for _ in range(20):
        run.clock += 100
        run.cpu.at(run.clock)
        run.execute(*run.program[run.ip])
    assert STATUS.decode(run.cpu.get_msr(Msr.STATUS)).PacketByteCnt == count


@pytest.mark.spec("TRCEN-003")
@examples(20)
@given(all_settings())
def test_memory_contains_the_emitted_stream(chosen: Settings) -> None:
    run, _, out = trace_program(chosen)
    assert run.cpu.unit.output.memory.read(BUFFER, len(out)) == out
    assert run.cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32 == len(out)


@pytest.mark.spec("TOPA-002", "TOPA-004", "TOPA-006", "TOPA-007")
@examples(20)
@given(all_settings(), st.lists(st.sampled_from((4096, 8192)), min_size=1, max_size=3))
def test_topa_regions_contain_the_emitted_stream(chosen: Settings, sizes: list[int]) -> None:
    chosen.ctl |= {"CYCEn": 1, "CycThresh": 0, "User": 1}
    chosen.steps *= 3
    run, _, out = trace_program(chosen, tuple(sizes))
    image = [bytearray(size) for size in sizes]
    number = offset = 0
    for byte in out:
        image[number][offset] = byte
        offset += 1
        if offset == sizes[number]:
            number, offset = (number + 1) % len(sizes), 0
    memory = run.cpu.unit.output.memory
    assert [memory.read(region_address(n), size) for n, size in enumerate(sizes)] == image
    assert run.cpu.get_msr(Msr.OUTPUT_MASK_PTRS) == offset << 32 | number << 7 | 0x7F


@pytest.mark.spec("FUP-003")
@examples(40)
@given(all_settings())
def test_every_fup_belongs_to_another_packet(chosen: Settings) -> None:
    _, stream, _ = trace_program(chosen)
    in_psb = pending = False
    for packet in stream:
        if packet.name in ("PSB", "PSBEND"):
            in_psb = packet.name == "PSB"
            assert not pending
        elif packet.name == "FUP" and not in_psb:
            pending = True
        elif packet.name in ("TIP", "TIP.PGD"):
            pending = False
        elif packet.name not in ("CYC", "MTC", "PIP", "MODE.Exec"):
            assert not pending
    assert not pending


@examples(40)
@given(all_settings(), st.integers(0, 500))
def test_restored_unit_continues_identically(chosen: Settings, steps: int) -> None:
    out = bytearray()
    run = Run(chosen, out.extend)
    run.enable()
    run.go(steps)
    unit = run.cpu.unit
    before = unit.snapshot()
    assert unit.snapshot() == before
    kept = vars(run) | {"calls": {level: own[:] for level, own in run.calls.items()}}
    kept |= {"truth": run.truth[:], "active": run.active[:]}
    dice = run.random.getstate()
    del out[:]
    run.go(200)
    first, after = bytes(out), unit.snapshot()
    assert before.state.diff(before.state.copy()) == {}

    vars(run).update(kept)
    run.random.setstate(dice)
    other = Processor(
        memory=Memory(observer=lambda _, data: out.extend(data)), parameters=chosen.parameters
    )
    other.unit.restore(before)
    run.cpu = other
    del out[:]
    run.go(200)
    assert bytes(out) == first
    assert other.unit.snapshot() == after


@examples(40)
@given(all_settings())
def test_filter_over_all_addresses_changes_no_packet(chosen: Settings) -> None:
    """The fast path of near branches equals the full rule, which applies when ranges are in use."""
    for number in range(4):
        chosen.ctl.pop(f"ADDR{number}_CFG", None)
    chosen.ranges = []
    _, _, plain = trace_program(chosen)
    chosen.ctl |= {"ADDR0_CFG": 1, "ADDR1_CFG": 1}
    chosen.ranges = [(1, 0, (1 << 47) - 1), (1, 0x1FFFF << 47, (1 << 64) - 1)]
    _, _, filtered = trace_program(chosen)
    assert filtered == plain
