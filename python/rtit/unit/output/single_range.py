"""Single-range output: one circular region given by a base and a mask (section 33.2.7.1)."""

from __future__ import annotations

from typing import NamedTuple


class SingleRange(NamedTuple):
    """The range of OUTPUT_BASE and the low half of OUTPUT_MASK_PTRS."""

    output_base: int
    mask: int

    @property
    def base(self) -> int:
        """Physical address of offset 0."""
        return self.output_base & ~self.mask

    @property
    def size(self) -> int:
        """Bytes: 128 to 4 GB."""
        return self.mask + 1

    def address(self, offset: int) -> int:
        """Where the byte at `offset` (OutputOffset) goes."""
        return self.base + (offset & self.mask)


def single_range_error(output_base: int, mask: int, offset: int) -> str | None:
    """Why the range is misconfigured, or None; the low 7 bits of `mask` are set, as in the MSR."""
    if mask & (mask + 1):
        return f"single-range mask {mask:#x} is not contiguous"
    if overlap := output_base & mask:
        return (
            f"single-range base {output_base:#x} and mask {mask:#x} have common bits {overlap:#x}"
        )
    if offset > mask:
        return f"single-range OutputOffset {offset:#x} is above the mask {mask:#x}"
    return None
