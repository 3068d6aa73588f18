"""Events that cannot happen are refused before anything changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rtit.errors import IllegalEvent
from rtit.processor import Arch, Processor
from rtit.registers import FULL
from rtit.unit import Memory, Stamps, TimeModel

KERNEL = Arch(cpl=0, cr3=0x5000)


def test_hlt_with_an_address_that_is_none() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=KERNEL)
    with pytest.raises(IllegalEvent):
        cpu.halt(0x1000, 1 << 64)
    assert not cpu.unit.state.asleep


def test_umwait_of_a_processor_that_sleeps() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=KERNEL)
    cpu.halt(0x1000, 0x1001)
    with pytest.raises(IllegalEvent, match="UMWAIT"):
        cpu.umwait(0x1001, 0x1005, 0, entered=False)


def test_senter_within_a_transaction() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=replace(KERNEL, in_tx=True))
    with pytest.raises(IllegalEvent):
        cpu.senter_sleep(0x1000)


def test_parts_of_an_operation_come_in_order() -> None:
    cpu = Processor(profile=FULL, memory=Memory(), arch=KERNEL, time=TimeModel(cpi=2))
    cpu.at(10)
    other = replace(KERNEL, cr3=0x6000)
    cpu.unit.transfer(0x2000, other, stamps=Stamps(pip=10, target=10))
    with pytest.raises(IllegalEvent, match="before the last one"):
        cpu.unit.transfer(0x3000, KERNEL, stamps=Stamps(pip=12, target=11))
