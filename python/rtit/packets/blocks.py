"""What the items of a packet block are called (Table 33-47)."""

from __future__ import annotations

_GPR = (
    *("R/EFLAGS", "R/EIP", "R/EAX", "R/ECX", "R/EDX", "R/EBX", "R/ESP", "R/EBP", "R/ESI", "R/EDI"),
    *(f"R{number}" for number in range(8, 16)),
)
_PEBS_BASIC = ("Instruction Pointer", "Applicable Counters", "Timestamp")
_PEBS_MEMORY = ("MemAccessAddress", "MemAuxInfo", "MemAccessLatency", "TSXAuxInfo")
_XMM = tuple(f"XMM{number // 2}_Q{number % 2}" for number in range(32))
_NAMES = {0x01: _GPR, 0x04: _PEBS_BASIC, 0x05: _PEBS_MEMORY, 0x10: _XMM}
_LBR_PARTS = ("FROM_IP", "TO_IP", "INFO")


def item_name(block_type: int, item_id: int) -> str | None:
    """The name of item `item_id` (0..31) of a block of type BBP.Type; None if it is reserved.

    The LBR blocks number 96 items in a row, three to an entry, from the top of the stack down.
    """
    if not 0 <= item_id < 32:
        return None
    if 0x08 <= block_type <= 0x0A:
        entry, part = divmod(32 * (block_type - 0x08) + item_id, 3)
        return f"LBR[TOS-{entry}]_{_LBR_PARTS[part]}"
    names = _NAMES.get(block_type, ())
    return names[item_id] if item_id < len(names) else None
