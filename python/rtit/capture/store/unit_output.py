"""The memory that a recorded thread's trace unit writes to: a single range or ToPA regions."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.errors import UsageError
from rtit.processor import Processor
from rtit.registers import Msr
from rtit.unit.memory import Memory

_TABLE_ADDRESS = 0x10_0000
_FIRST_REGION = 0x1000_0000
_CTL_TOPA = 1 << 8
_ENTRY_END = 1 << 0
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class OutputSetup:
    """One output scheme (section 33.2.7).

    `regions` 0 means a single range of `size` bytes (128 bytes to 4 GB); otherwise a circular ToPA
    table of that many regions of `size` bytes each (4 KB to 128 MB). Sizes are powers of two.
    Raises UsageError for others.
    """

    regions: int = 0
    size: int = 1 << 22

    def __post_init__(self) -> None:
        low, high = (_PAGE, 128 << 20) if self.regions else (128, 4 << 30)
        if self.size & (self.size - 1) or not low <= self.size <= high:
            raise UsageError(
                f"an output region has a power of two from {low} to {high} bytes, not {self.size}"
            )

    @property
    def ctl(self) -> int:
        """The bits of IA32_RTIT_CTL that choose this scheme."""
        return _CTL_TOPA if self.regions else 0

    def install(self, cpu: Processor, memory: Memory) -> None:
        """Write the table, where there is one, and the output registers. TraceEn must be 0."""
        if not self.regions:
            cpu.set_msr(Msr.OUTPUT_BASE, _FIRST_REGION << 8)
            cpu.set_msr(Msr.OUTPUT_MASK_PTRS, self.size - 1)
            return
        code = (self.size // _PAGE).bit_length() - 1
        for index in range(self.regions):
            memory.write_u64(_TABLE_ADDRESS + 8 * index, self.region(index) | code << 6)
        memory.write_u64(_TABLE_ADDRESS + 8 * self.regions, _TABLE_ADDRESS | _ENTRY_END)
        cpu.set_msr(Msr.OUTPUT_BASE, _TABLE_ADDRESS)
        cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0x7F)

    def region(self, index: int) -> int:
        """Return the physical address of ToPA region `index`. Regions are not adjacent, so that a
        packet across two of them shows.
        """
        return _FIRST_REGION + 2 * index * self.size
