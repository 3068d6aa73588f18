"""IP compression, and prediction of returns for RET compression (section 33.4.2.2)."""

from __future__ import annotations

from collections import deque

IP_BYTES_OF_POLICY: dict[str, tuple[int, ...]] = {
    "shortest": (1, 2, 3, 4, 6),
    "none": (6,),
    "sext48_only": (3, 6),
    "bdw": (1, 2, 3, 6),
}
"""Values of IPBytes that each Parameters.ip_compression uses, in order of preference."""

RET_STACK_DEPTH = 64
"""CALLs that a decoder remembers."""

NO_LAST_IP = 1 << 64
"""As LastIP: nothing may be compressed against an earlier packet."""

_SIGN48 = 1 << 47
_HIGH16 = 0xFFFF << 48


def allowed_ip_encodings(policy: str, linear_width: int) -> int:
    """Return the IPBytes values in use as a bitmap.

    With 32-bit linear addresses only 001b and 010b exist (Table 33-18).
    """
    bitmap = sum(1 << code for code in IP_BYTES_OF_POLICY[policy])
    if linear_width == 32:
        return bitmap & 0b110 | 0b100
    return bitmap


def compress_ip(ip: int, last_ip: int, encodings: int) -> tuple[int, int]:
    """Return (IPBytes, payload) of the first encoding that reproduces `ip` (Table 33-18).

    The order is 001b, 010b, 011b, 100b, 110b; `encodings` is the bitmap of those in use. `ip` is a
    64-bit value; `last_ip` is one, or NO_LAST_IP.
    """
    differs = ip ^ last_ip
    if not differs >> 16 and encodings & 0b10:
        return 1, ip & 0xFFFF
    if encodings & 0b100 and (not differs >> 32 or encodings <= 0b110):
        return 2, ip & 0xFFFF_FFFF
    if encodings & 0b1000 and ip & _HIGH16 == (_HIGH16 if ip & _SIGN48 else 0):
        return 3, ip & 0xFFFF_FFFF_FFFF
    if not differs >> 48 and encodings & 0b10000:
        return 4, ip & 0xFFFF_FFFF_FFFF
    return 6, ip


def new_call_stack(depth: int) -> deque[int]:
    """Return an empty call stack. When full, a CALL drops the oldest entry. Depth 0 compresses no
    RET.
    """
    return deque(maxlen=min(depth, RET_STACK_DEPTH))


def is_predicted_return(expected: int, target: int, operand_size: int) -> bool:
    """Return whether a RET that popped `expected` from the call stack goes to `target`.

    Only the low `operand_size` bits count.
    """
    return expected == target or expected & ((1 << operand_size) - 1) == target
