"""Decoded instructions in Python; crates/x86 tests the opcode table."""

from __future__ import annotations

import pytest

from rtit.errors import InputError

pytest.importorskip("rtit._core", reason="the native module is not built")

from rtit.x86 import Instruction, InstructionClass, decode

IP = 0x1000


@pytest.mark.parametrize(
    ("code", "kind", "target"),
    [
        ("90", InstructionClass.OTHER, None),
        ("7510", InstructionClass.CONDITIONAL, 0x1012),
        ("e2fe", InstructionClass.CONDITIONAL, 0x1000),
        ("eb10", InstructionClass.JUMP, 0x1012),
        ("e8f0ffffff", InstructionClass.CALL, 0xFF5),
        ("ffe0", InstructionClass.INDIRECT_JUMP, None),
        ("ff10", InstructionClass.INDIRECT_CALL, None),
        ("c3", InstructionClass.RETURN, None),
        ("48cf", InstructionClass.FAR_TRANSFER, None),
        ("0f05", InstructionClass.SYSCALL, None),
        ("cd80", InstructionClass.SOFTWARE_INTERRUPT, None),
        ("0f01c2", InstructionClass.VM_ENTRY, None),
        ("0f22d8", InstructionClass.MOV_CR3, None),
        ("f30faee0", InstructionClass.PTWRITE, None),
        ("0fc730", InstructionClass.VMPTRLD, None),
        ("c7f810000000", InstructionClass.XBEGIN, 0x1016),
        ("0f01d5", InstructionClass.XEND, None),
        ("c6f801", InstructionClass.XABORT, None),
    ],
)
def test_instruction_has_class_and_target(
    code: str, kind: InstructionClass, target: int | None
) -> None:
    data = bytes.fromhex(code)
    assert decode(data + bytes(4), IP) == Instruction(IP, len(data), kind, IP + len(data), target)


def test_all_classes_are_tested() -> None:
    marks = test_instruction_has_class_and_target.pytestmark  # type: ignore[attr-defined]
    cases = next(mark for mark in marks if mark.name == "parametrize").args[1]
    assert [kind for _, kind, _ in cases if kind is not InstructionClass.CONDITIONAL] == [
        kind for kind in InstructionClass if kind is not InstructionClass.CONDITIONAL
    ]


def test_modes_and_prefixes_are_decoded() -> None:
    assert decode(b"\xeb\xfc", 0x1000, 16).target == 0xFFE
    assert decode(b"\x48\xff\xe0", IP, 32).length == 1
    assert decode(b"\x90", (1 << 64) - 1).next_ip == 0
    assert decode(b"\xf3\xaa", IP).repeats
    assert not decode(b"\xaa", IP).repeats


def test_invalid_bytes_are_an_input_error() -> None:
    for code in (b"", b"\xe8\x00", b"\x06", b"\x0f\x0b\xff"[2:]):
        with pytest.raises(InputError, match="at 0x1000"):
            decode(code, IP)
    with pytest.raises(ValueError, match="bits is 8"):
        decode(b"\x90", IP, 8)
    with pytest.raises(OverflowError):
        decode(b"\x90", 1 << 64)
