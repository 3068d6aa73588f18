"""What the chapter leaves to the processor, as parameters of the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rtit.errors import UsageError

PSB_PLUS_ORDER = ("TSC", "PIP", "CBR", "MODE.TSX", "MODE.Exec", "FUP")
"""The packets of PSB+; TMA follows its TSC at once and has no place of its own."""

IP_BYTES: dict[str, tuple[int, ...]] = {
    "shortest": (1, 2, 3, 4, 6),
    "none": (6,),
    "sext48_only": (3, 6),
    "bdw": (1, 2, 3, 6),
}
"""Values of IPBytes that each compression policy uses, in order of preference."""

TNT_CAPACITY = {"short": 6, "long": 47, "mixed": 47}


@dataclass(frozen=True, slots=True)
class Parameters:
    """Choices among the behaviours that the chapter allows. Every one gives a legal trace of the
    same execution.

    Packets:
      tnt_form: results wait for a `short` TNT (6), a `long` one (47), or `mixed` (47, short when at
        most 6 wait); 33.4.2.1.
      tnt_flush: send a TNT once it holds this many results; 0: only when it is full or another
        packet demands it.
      ip_compression: `shortest` of all encodings, `none` (full IP), `sext48_only` (48 bits sign
        extended, or full), `bdw` (all but IPBytes 100b); 33.4.2.2.
      ret_compression_depth: 0 to 64 CALLs remembered for RET compression; 33.4.2.2.
      modeexec_suppress: leave MODE.Exec out at TIP.PGE when the mode is the one last sent;
        33.4.2.8.
      tracestop_pgd_ip: payload of the TIP.PGD before TraceStop: `target` or `suppressed`; 33.2.5.3.
    PSB:
      psb_on_enable_order: PSB+ `before_pge` (it then has no FUP) or `after_pge`; 33.2.8.3.
      psb_delay: bytes from reaching the threshold to the insertion; 33.4.2.17.
      psb_plus_order: the packets of PSB+ that apply, in this order; 33.3.7.
      psb_counts_itself: PSB+ counts in PacketByteCnt.
    CYC:
      cyc_counter_bits: width of the cycle counter, 12 to 64; a stand-alone CYC goes out before it
        wraps; 33.3.6.1.
      cyc_max_bytes: longest CYC packet, 2 to 9.
    Output:
      topa_follow: an END entry is followed as soon as the region before it is filled (`eager`), or
        with the next byte (`lazy`).
      topa_pmi_margin: bytes by which the PMI of a processor with single-entry ToPA comes before its
        region is filled.
      smrr_policy: what a region in restricted memory does: `drop` the bytes, or `error`; Table
        33-5.
    STATUS:
      clear_enables_on_disable: clearing TraceEn also zeroes ContextEn and FilterEn in
        IA32_RTIT_STATUS; 33.2.8.3.

    Raises UsageError for a value outside its range.
    """

    tnt_form: Literal["short", "long", "mixed"] = "short"
    tnt_flush: int = 0
    ip_compression: Literal["shortest", "none", "sext48_only", "bdw"] = "shortest"
    ret_compression_depth: int = 64
    modeexec_suppress: bool = True
    tracestop_pgd_ip: Literal["target", "suppressed"] = "target"
    psb_on_enable_order: Literal["before_pge", "after_pge"] = "before_pge"
    psb_delay: int = 0
    psb_plus_order: tuple[str, ...] = PSB_PLUS_ORDER
    psb_counts_itself: bool = True
    cyc_counter_bits: int = 14
    cyc_max_bytes: int = 3
    topa_follow: Literal["eager", "lazy"] = "eager"
    topa_pmi_margin: int = 512
    smrr_policy: Literal["drop", "error"] = "drop"
    clear_enables_on_disable: bool = False

    def __post_init__(self) -> None:
        _one_of("tnt_form", self.tnt_form, TNT_CAPACITY)
        _one_of("ip_compression", self.ip_compression, IP_BYTES)
        _one_of("tracestop_pgd_ip", self.tracestop_pgd_ip, ("target", "suppressed"))
        _one_of("psb_on_enable_order", self.psb_on_enable_order, ("before_pge", "after_pge"))
        _one_of("topa_follow", self.topa_follow, ("eager", "lazy"))
        _one_of("smrr_policy", self.smrr_policy, ("drop", "error"))
        _between("topa_pmi_margin", self.topa_pmi_margin, 0, 4096)
        _between("tnt_flush", self.tnt_flush, 0, TNT_CAPACITY[self.tnt_form])
        _between("ret_compression_depth", self.ret_compression_depth, 0, 64)
        _between("psb_delay", self.psb_delay, 0, 1 << 32)
        _between("cyc_counter_bits", self.cyc_counter_bits, 12, 64)
        _between("cyc_max_bytes", self.cyc_max_bytes, 2, 9)
        if sorted(self.psb_plus_order) != sorted(PSB_PLUS_ORDER):
            raise UsageError(f"psb_plus_order has each of {', '.join(PSB_PLUS_ORDER)} once")
        if self.cyc_counter_bits > self.cyc_bits:
            raise UsageError(
                f"a CYC of {self.cyc_max_bytes} bytes holds {self.cyc_bits} bits, "
                f"the cycle counter has {self.cyc_counter_bits}"
            )

    @property
    def cyc_bits(self) -> int:
        """Bits of the longest CYC payload (Table 33-33)."""
        return 5 + 7 * (self.cyc_max_bytes - 1)

    @property
    def tnt_results(self) -> int:
        """Results after which a TNT is sent."""
        return self.tnt_flush or TNT_CAPACITY[self.tnt_form]


def _one_of(name: str, value: str, valid: Iterable[str]) -> None:
    names = tuple(valid)
    if value not in names:
        raise UsageError(f"{name} is one of {', '.join(names)}, not {value!r}")


def _between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} lies between {low} and {high}, not {value}")
