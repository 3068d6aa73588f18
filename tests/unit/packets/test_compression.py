"""IP compression and the call stack (section 33.4.2.2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.packets import iterate_packets
from rtit.processor import Processor
from rtit.registers import CTL, Msr
from rtit.unit.compression import NO_LAST_IP, allowed_ip_encodings, compress_ip
from rtit.unit.memory import Memory

IPS = st.integers(0, (1 << 64) - 1)
NEAR = st.builds(lambda ip, bits, noise: ip ^ noise >> bits, IPS, st.integers(0, 63), IPS)


def decompress_ip(ip_bytes: int, payload: int, last_ip: int) -> int:
    """Return the IP of a compressed payload (Table 33-18)."""
    if ip_bytes == 3:
        return payload | (0xFFFF << 48 if payload >> 47 else 0)
    kept = {1: 16, 2: 32, 4: 48, 6: 64}[ip_bytes]
    return last_ip >> kept << kept | payload


@pytest.mark.spec("IPC-002", "IPC-003", "IPC-004", "IPC-005", "IPC-006")
@given(IPS, NEAR, IPS, st.sampled_from(("shortest", "none", "sext48_only", "bdw")))
def test_compressed_ips_decode_to_the_originals(
    last: int, near: int, far: int, policy: str
) -> None:
    for ip in (near, far, last):
        code, payload = compress_ip(ip, last, allowed_ip_encodings(policy, 57))
        assert decompress_ip(code, payload, last) == ip
        code, payload = compress_ip(ip, NO_LAST_IP, allowed_ip_encodings(policy, 57))
        assert code in (3, 6)
        assert decompress_ip(code, payload, last) == ip


@pytest.mark.spec("IPC-005")
def test_encoding_100_applies_if_bits_63_to_48_are_those_of_last_ip() -> None:
    # Bit 47 differs from bits 63:48, which equal those of LastIP.
    assert compress_ip(
        0x1234_8000_0000_0000, 0x1234_0000_0000_0000, allowed_ip_encodings("shortest", 57)
    ) == (
        4,
        0x8000_0000_0000,
    )


@pytest.mark.spec("IPC-002", "IPC-003", "IPC-004", "IPC-005", "IPC-006")
@pytest.mark.parametrize(
    ("bit", "code"), [(15, 1), (16, 2), (31, 2), (32, 4), (47, 4), (48, 6), (63, 6)]
)
def test_highest_different_bit_selects_the_encoding(bit: int, code: int) -> None:
    """The IP is not canonical, so that 011b does not apply."""
    last = 0x1234_9234_5678_9ABC
    ip = last ^ 1 << bit
    size = {1: 16, 2: 32, 4: 48, 6: 64}[code]
    assert compress_ip(ip, last, allowed_ip_encodings("shortest", 48)) == (
        code,
        ip & (1 << size) - 1,
    )


@pytest.mark.spec("IPC-011")
@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_32_bit_linear_addresses_are_compressed(last: int, ip: int) -> None:
    for policy in ("shortest", "none", "sext48_only", "bdw"):
        for reference in (last, NO_LAST_IP):
            code, payload = compress_ip(ip, reference, allowed_ip_encodings(policy, 32))
            assert code <= 2
            assert decompress_ip(code, payload, last) == ip


@pytest.fixture
def cpu() -> tuple[Processor, bytearray]:
    out = bytearray()
    cpu = Processor(memory=Memory(observer=lambda _, data: out.extend(data)))
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFFF)
    cpu.set_msr(Msr.CTL, CTL.encode(TraceEn=1, User=1, BranchEn=1), next_ip=0x1000)
    return cpu, out


@pytest.mark.spec("RET-003")
def test_65th_call_drops_the_oldest_call_stack_entry(cpu: tuple[Processor, bytearray]) -> None:
    processor, out = cpu
    for depth in range(65):
        ip = 0x1000 + 0x100 * depth
        processor.call(ip, ip + 5, ip + 0x100)
    del out[:]
    for depth in reversed(range(65)):
        processor.ret(0x9000, 0x1005 + 0x100 * depth)
    processor.unit.flush()
    read = [
        (p.name, p.fields.get("bits", p.fields.get("payload"))) for p in iterate_packets(bytes(out))
    ]
    assert read == [("TNT", "TTTTTT")] * 10 + [("TNT", "TTTT"), ("TIP", 0x1005)]
