"""Several address spaces in one stream, selected by CR3, NR and the VMCS pointer (33.5)."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from rtit.packets import encode

core = pytest.importorskip("rtit._core", reason="the native module is not built")

A, B = 0x5000, 0x6000

# 1000 nop; 1001 mov cr3, rax; 1004 nop; 1005 nop; 1006 jmp rax
FROM = "90 0f22d8 90 90 ffe0"
# the same addresses, other instructions: from 1004 on one of two bytes
TO = "90 0f22d8 6690 ffe0"


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def pip(cr3: int, nr: int = 0) -> bytes:
    return encode("PIP", nr=nr, cr3=cr3)


def vmcs(pointer: int) -> bytes:
    return encode("VMCS", pointer=pointer)


def space(code: str) -> Any:
    made = core.Space()
    made.map(0, 0x1000, bytes.fromhex(code))
    return made


def begin(*status: bytes) -> bytes:
    """PSB+ at 0x1000."""
    plus = b"\x99\x01" + b"".join(status) + ip_packet("FUP", 0x1000)
    return encode("PSB") + plus + encode("PSBEND")


def disable(ip: int) -> bytes:
    return ip_packet("FUP", ip) + encode("TIP.PGD", ip_bytes=0)


def decode_path(stream: bytes, spaces: dict[Any, str], default: str = "") -> list[int]:
    """Return the IPs of the path; no data may be lost."""
    others = {key: space(code) for key, code in spaces.items()}
    flow = core.StreamDecoder(stream, space(default), spaces=others)
    ips = array("Q")
    while (part := flow.instructions(100)) is not None:
        ips.extend(part["ip"])
    assert [row[2] for row in flow.ledger()] == ["exact"], flow.ledger()
    return list(ips)


@pytest.mark.spec("DEC-015", "PIP-009")
def test_mov_cr3_changes_the_code_from_the_next_instruction() -> None:
    spaces = {(A, 0): FROM, (B, 0): TO}
    # the packet precedes the packet of the jmp
    assert decode_path(begin(pip(A)) + pip(B) + disable(0x1006), spaces) == [0x1000, 0x1001, 0x1004]
    stayed = [0x1000, 0x1001, 0x1004, 0x1005]
    assert decode_path(begin(pip(A)) + pip(A) + disable(0x1006), spaces) == stayed
    # an unknown CR3 selects the default space
    assert decode_path(begin(pip(A)) + pip(B) + disable(0x1006), {(A, 0): TO}, FROM) == stayed
    assert decode_path(begin() + pip(B) + disable(0x1006), {(B, 0): TO}, FROM) == stayed[:3]


@pytest.mark.spec("PIP-009")
@pytest.mark.parametrize("far", ["cf", "0f01c2", "0f01c3"], ids=["iret", "vmlaunch", "vmresume"])
def test_far_transfer_changes_the_code_at_its_target(far: str) -> None:
    # a far transfer at 1000 is none of the new space; its target is
    spaces = {(A, 0): far + "90" * 9, (B, 1): "90" * 8 + "6690"}
    ips = decode_path(
        begin(pip(A)) + pip(B, 1) + ip_packet("TIP", 0x1008) + disable(0x100A), spaces
    )
    assert ips == [0x1000, 0x1008]


@pytest.mark.spec("PIP-008")
def test_between_fup_and_tip_the_old_code_runs_up_to_the_fup() -> None:
    # two nops, where the new space has one of two bytes; the path has no MOV CR3
    spaces = {(A, 0): "9090 0f22d8 9090", (B, 0): "6690 0f22d8 6690"}
    event = ip_packet("FUP", 0x1001) + pip(B) + ip_packet("TIP", 0x1005)
    assert decode_path(begin(pip(A)) + event + disable(0x1007), spaces) == [0x1000, 0x1005]


@pytest.mark.spec("DEC-015")
def test_guests_with_one_cr3_differ_by_nr_and_vmcs_pointer() -> None:
    spaces = {(A, 0): FROM, (A, 1, 0x7000): TO, (A, 1, 0x8000): "0f1f00 90909090 ffe0"}

    def ips(*status: bytes) -> list[int]:
        return decode_path(begin(*status) + disable(0x1004), spaces, "90909090")

    assert ips(pip(A), vmcs(0x7000)) == [0x1000, 0x1001]
    assert ips(pip(A, 1), vmcs(0x7000)) == [0x1000, 0x1001]
    assert ips(pip(A, 1), vmcs(0x8000)) == [0x1000, 0x1003]
    # the default space: NR says that it is a guest, but not which
    assert ips(pip(A, 1), vmcs(0x9000)) == [0x1000, 0x1001, 0x1002, 0x1003]


@pytest.mark.spec("VMCS-006")
def test_vmcs_pointer_holds_from_the_next_vm_entry() -> None:
    # 1000 nop; 1001 vmptrld [rax]; 1004 mov cr3, rax; 1007 nop nop; 1009 vmresume
    host = "90 0fc730 0f22d8 90 90 0f01c3"
    spaces: dict[Any, str] = {
        (A, 1, 0x7000): "6690",
        (A, 1, 0x8000): "9090",
        (A, 0, 0x8000): "90" * 10 + "66" * 3,
    }
    spaces[A, 0] = spaces[B, 0] = host
    start = begin(vmcs(0x7000), pip(B)) + vmcs(0x8000)
    ran = [0x1000, 0x1001, 0x1004, 0x1007, 0x1008, 0x1009]
    enter = pip(A, 1) + ip_packet("TIP", 0x1000) + disable(0x1002)
    # a MOV CR3 is too early
    assert decode_path(start + pip(A) + enter, spaces) == [*ran, 0x1000, 0x1001]
    # without it the entry is to the guest of the old pointer
    old = begin(vmcs(0x7000), pip(B)) + pip(A) + enter
    assert decode_path(old, spaces) == [*ran, 0x1000]
    # within a compound event it holds from the end of the event
    event = (
        ip_packet("FUP", 0x1001)
        + vmcs(0x8000)
        + pip(A, 1)
        + ip_packet("TIP", 0x1000)
        + disable(0x1002)
    )
    assert decode_path(begin(vmcs(0x7000), pip(B)) + event, spaces) == [0x1000, 0x1000, 0x1001]


@pytest.mark.parametrize("walk", [False, True], ids=["steps", "packet by packet"])
@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_branch_target_is_in_the_batch_of_the_branch(most: int, walk: bool) -> None:
    # 1000 vmlaunch into 1000 je 1002 of the other space
    spaces = {(A, 0): space("0f01c2"), (B, 1): space("7400 90")}
    enter = pip(B, 1) + ip_packet("TIP", 0x1000) + encode("TNT", bits="T")
    leave = ip_packet("FUP", 0x1002) + pip(A) + ip_packet("TIP", 0x1000)
    rounds = (enter + leave) * 3
    stream = begin(pip(A)) + rounds + disable(0x1000)
    flow = core.StreamDecoder(stream, core.Space(), spaces=spaces, walk=walk)
    found: list[tuple[int, int, int]] = []
    while (batch := flow.branches(most)) is not None:
        source, *_, came, led = map(list, batch.values())
        found += zip(source, came, led or came, strict=True)
    assert found == [(0x1000, 1, 2), (0x1000, 2, 2)] * 3


def test_invalid_space_keys_are_rejected() -> None:
    with pytest.raises(ValueError, match="NR is 2"):
        core.StreamDecoder(b"", core.Space(), spaces={(A, 2): core.Space()})
    with pytest.raises(TypeError):
        core.StreamDecoder(b"", core.Space(), spaces={(A, 0): b""})
