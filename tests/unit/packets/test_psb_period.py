"""The period of PSB+ by IA32_RTIT_CTL.PSBFreq (Table 33-6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rtit.packets import encode
from rtit.processor import Processor
from rtit.registers import CTL, FULL, STATUS, Msr

PSB = encode("PSB")


@pytest.mark.spec("MSRCTL-025", "MSRSTS-016", "PSB-015")
@pytest.mark.parametrize("freq", range(16))
def test_psb_period_is_2_to_the_psbfreq_plus_11_bytes(freq: int) -> None:
    psbs, written = [], 0

    def fabric(data: bytes) -> None:
        nonlocal written
        if (at := data.find(PSB)) >= 0:
            psbs.append(written + at)
        written += len(data)

    cpu = Processor(fabric=fabric, profile=replace(FULL, psb_periods=0xFFFF))
    ctl = CTL.encode(TraceEn=1, User=1, BranchEn=1, FabricEn=1, PSBFreq=freq)
    cpu.set_msr(Msr.CTL, ctl, next_ip=0x1000)
    period = 2 ** (freq + 11)
    cpu.unit.pad(period - 1 - written)
    assert psbs == [0]
    count = STATUS.decode(cpu.get_msr(Msr.STATUS)).PacketByteCnt
    assert count == (period - 1) % 2**17
    cpu.unit.pad()
    assert psbs == [0, period]
