"""Encodes instructions for the events of a scenario, with the length of the event."""

from __future__ import annotations

PREFIX = b"\x2e"
"""CS override: lengthens the instructions here without another effect."""

NOP = b"\x90"

FIXED = {
    "indirect_jump": "ff e0",
    "indirect_call": "ff d0",
    "ret": "c3",
    "far": "cb",
    "syscall": "0f 05",
    "iret": "cf",
    "resume": "cf",
    "uiret": "f3 0f 01 ec",
    "mov_cr3": "0f 22 d8",
    "vm_entry": "0f 01 c2",
    "smm_vm_entry": "0f 01 c3",
    "rsm": "0f aa",
}
"""Instructions whose bytes do not depend on their address."""

PLAIN = {
    "end_transaction": {3: "0f 01 d5"},
    "ptwrite": {4: "f3 0f ae e0", 5: "f3 48 0f ae e0"},
    "mwait": {3: "0f 01 c9"},
    "halt": {1: "f4"},
    "getsec": {2: "0f 37"},
    "vmptrld": {3: "0f c7 30", 4: "2e 0f c7 30"},
    "vmclear": {4: "66 0f c7 30"},
    "vmxon": {4: "f3 0f c7 30"},
    "vmxoff": {3: "0f 01 c4"},
}
"""Instructions that continue at the next, by length; those of another length (XACQUIRE, an operand
in memory) are a NOP of that length here.
"""


class NoFitError(Exception):
    """Raised if no instruction of the length leads to the target."""


def encode(
    name: str, ip: int, length: int | None, target: int, width: int, operand: int | None
) -> bytes:
    """Return the instruction of event `name` at `ip` that leads to `target`, in code of `width`
    bits.

    It has its shortest length if `length` is None. `operand` is the operand size of RET in bits,
    None for that of the code. Raises NoFitError.
    """
    if name == "ret" and operand not in (None, width):
        return b"\x66\xc3"
    if name in FIXED:
        return _longer(bytes.fromhex(FIXED[name]), length)
    if name in ("conditional", "jump", "call"):
        return _relative(name, ip, length, target, width)
    shortest = 4 if width == 16 else 6
    if name == "begin_transaction" and length is not None and length >= shortest:
        return _longer(b"\xc7\xf8" + bytes(shortest - 2), length)
    if length is None or not 1 <= length <= 15:
        raise NoFitError(f"{name} has {length} bytes")
    return bytes.fromhex(PLAIN.get(name, {}).get(length, "")) or _longer(NOP, length)


def _relative(name: str, ip: int, length: int | None, target: int, width: int) -> bytes:
    near = 2 if width == 16 else 4
    opcodes = {
        "conditional": [(b"\x0f\x85", near), (b"\x75", 1)],
        "jump": [(b"\xeb", 1), (b"\xe9", near)],
        "call": [(b"\xe8", near)],
    }
    for opcode, size in opcodes[name]:
        shortest = len(opcode) + size
        if length is not None and not shortest <= length <= 15:
            continue
        actual = shortest if length is None else length
        distance = target - ip - actual
        if width == 64:
            distance = (distance + (1 << 63)) % (1 << 64) - (1 << 63)
        if not -1 << (8 * size - 1) <= distance < 1 << (8 * size - 1):
            continue
        return _longer(opcode + distance.to_bytes(size, "little", signed=True), actual)
    raise NoFitError(f"no {name} of {length or 'any'} bytes leads that far")


def _longer(code: bytes, length: int | None) -> bytes:
    missing = 0 if length is None else length - len(code)
    if missing < 0 or len(code) + missing > 15:
        raise NoFitError(f"an instruction has {len(code)} bytes, not {length}")
    return PREFIX * missing + code
