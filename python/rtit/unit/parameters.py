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

FAILED_ENTRY_PACKETS = ("CFE", "guest_pip", "trace_en", "host_pip")
"""What may come at a late failure of VM entry, in this order (Table 33-54)."""

PEBS_BLOCK_ORDER = (0x04, 0x05, 0x01, 0x10, 0x08, 0x09, 0x0A)
"""BBP types: basic, memory, general-purpose registers, XMM, LBR (Table 33-45)."""

PSB_EVENTS = ("enable", "transfer", "mov_cr3", "wake", "frequency")
"""What may insert a PSB+ besides the byte count: see Parameters.psb_extra."""

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
      tnt_flush_cycles: what waits is also sent at each multiple of this many core cycles; 0: time
        alone sends nothing; 33.4.2.1.
      ip_compression: `shortest` of all encodings, `none` (full IP), `sext48_only` (48 bits sign
        extended, or full), `bdw` (all but IPBytes 100b); 33.4.2.2.
      compress_after_psb: the first IP after a PSB is compressed against zero, or not at all;
        33.4.2.2.
      ret_compression_depth: 0 to 64 CALLs remembered for RET compression; 33.4.2.2.
      modeexec_suppress: leave MODE.Exec out at TIP.PGE when the mode is the one last sent;
        33.4.2.8.
      filter_sequential: code that falls into a FilterEn range is traced from the next taken branch
        or event on (`never`), or at once (`at_boundary`), with TIP.PGE. Falling out of one is seen
        late in any case: no packet could tell where; 33.2.5.3.
      tracestop_pgd_ip: payload of the TIP.PGD before TraceStop: `target` or `suppressed`; 33.2.5.3.
    PSB:
      psb_on_enable_order: PSB+ `before_pge` (it then has no FUP) or `after_pge`; 33.2.8.3.
      psb_delay: bytes from reaching the threshold to the insertion; 33.4.2.17.
      psb_extra: what inserts a PSB+ besides the byte count: `enable` (setting TraceEn, whatever the
        count), `transfer` (far transfers and events), `mov_cr3`, `wake` (from a C-state, TM1, TM2,
        STPCLK#), `frequency` (a change of it); 33.4.2.17.
      psb_plus_order: the packets of PSB+ that apply, in this order; VMCS comes where it is named,
        else after PIP; 33.3.7.
      psb_counts_itself: PSB+ counts in PacketByteCnt.
    CYC:
      cyc_counter_bits: width of the cycle counter, 12 to 64; a stand-alone CYC goes out before it
        wraps; 33.3.6.1.
      cyc_max_bytes: longest CYC packet, 2 to 9.
    Output:
      topa_follow: an END entry is followed as soon as the region before it is filled (`eager`), or
        with the next byte (`lazy`).
      held_bytes: the youngest bytes, up to this many, stay in internal buffers until more come or
        TraceEn is cleared; an operational error or a ToPA STOP loses them; 33.2.7, 33.3.3.
      topa_cache: when an entry is read: anew for each write (`none`), once when it becomes current
        (`entry`), or together with the rest of its 4 KB of the table (`table`). Changes made in the
        meantime are not seen; 33.2.7.2.
      pmi_skid: bytes that are written after a region is filled before its PMI is signalled; another
        one that falls due in between is the same PMI; 33.2.7.2.
      topa_pmi_margin: bytes by which the PMI of a processor with single-entry ToPA comes before its
        region is filled.
      smrr_policy: what a region in restricted memory does: `drop` the bytes, or `error`; Table
        33-5.
      error_latency: core cycles after setting TraceEn before STATUS.Error shows an error that it
        caused; clearing TraceEn shows it at once. TriggerEn is 0 from the start; 33.3.2.1.
    STATUS:
      clear_enables_on_disable: clearing TraceEn also zeroes ContextEn and FilterEn in
        IA32_RTIT_STATUS; 33.2.8.3.
    VMX, SMM, enclaves, authenticated code:
      vmentry_disable_fup: a VM entry that ends tracing has a FUP with its own IP before TIP.PGD
        (Table 33-56 row 9), although the instruction is visible.
      failed_vmentry_packets: which of the packets that may come come at a late failure: `CFE` (with
        its FUP), `guest_pip`, `trace_en` (TSC, TMA, CBR), `host_pip`; Table 33-54.
      vmx_abort_drop: a VM exit that ends in VMX abort loses its `tip`, or `none`; 33.5.2.6.
      rsm_with_lbr: on a processor that cannot use PT beside LBR, RSM that leads to both: last
        branches are `suspend`ed (33.8.1), or `shutdown` (33.2.9.3).
      enclave_entry_fup: entry to an enclave that ends tracing has a FUP (`always`, Table 33-23) or
        not (`tip_only`, Table 33-56 row 6).
      senter_drop: what GETSEC finds in internal buffers is lost (`drop`), and with it the end of
        the trace; or written (`keep`); 33.2.9.6.
      acm_timing_packets: TSC, TMA and CBR follow an authenticated code module; 33.2.9.6.
    Deferred TIPs:
      deferred_tips: how many TIPs of indirect JMPs and CALLs may wait for the TNT before them to
        fill; 0: none. Never with CYCEn=1, for which the chapter gives no rule; 33.4.2.3.
    Overflow:
      buffer_bytes: size of the internal buffer, 256 or more; 0: without bound. It drains
        `drain_bytes` every `drain_cycles` core cycles; 33.3.8.
      ovf_resolve: an overflow resolves when the buffer has come down to `ovf_resolve_level` bytes
        (`level`), or when told (`explicit`).
      ovf_psb: a PSB+ follows OVF (and FUP) `always`, `never`, or when something `changed` in the
        overflow that no other packet tells: the width of the code, CR3, a transaction; Table 33-14.
      tracestop_in_ovf: TraceStop that falls into an overflow is `delayed` until after OVF, or
        `dropped`; 33.2.5.3 and 33.3.8.1.
    Padding and blocks:
      pad_align: PADs after the packets of an event fill up to a multiple of this many bytes, 1
        (none) to 4096; 33.4.2.20.
      psb_guard_pad: a PAD before each PSB, so that no payload before it looks like its beginning.
      pebs_block_order: BBP types of a PEBS record, in this order; 33.4.2.26.
    Power:
      power_min_cstate: the lightest state that power packets tell of: `C0.2` or `C1`; 33.4.2.23.
      deepest_cstate: MWAIT encoding of the deepest state that the core supports, 0 (C1) to 14;
        deeper requests resolve to it; 33.4.2.24.
      tsc_on_frequency_change: TSC and TMA come with a frequency change that stops no clock;
        33.4.2.11.
    Event trace:
      evd_order: EVDs of a VM exit: VMXQ before VMXR (`qr`, Table 33-59) or after it (`rq`, Table
        33-53).
      cfe_pf_0to1, cfe_vmexit_0to1: whether a page fault, or a VM exit, that sets ContextEn has a
        CFE: Table 33-49 and Table 33-59 disagree.
      modeexec_branch_nobranchen: a branch that changes RFLAGS.IF with BranchEn=0 has no packet for
        MODE.Exec to bind to: it gets a FUP with the target (`fup_target`), or none is sent
        (`omit`); 33.4.2.8.
      uintr_literal: user interrupts and UIRET have their targets (`full`), or only what rows 26 and
        27 of Table 33-55 show (`table`), which no decoder can follow.

    Raises UsageError for a value outside its range.
    """

    tnt_form: Literal["short", "long", "mixed"] = "short"
    tnt_flush: int = 0
    tnt_flush_cycles: int = 0
    ip_compression: Literal["shortest", "none", "sext48_only", "bdw"] = "shortest"
    compress_after_psb: bool = True
    ret_compression_depth: int = 64
    modeexec_suppress: bool = True
    filter_sequential: Literal["never", "at_boundary"] = "never"
    tracestop_pgd_ip: Literal["target", "suppressed"] = "target"
    psb_on_enable_order: Literal["before_pge", "after_pge"] = "before_pge"
    psb_delay: int = 0
    psb_extra: tuple[str, ...] = ()
    psb_plus_order: tuple[str, ...] = PSB_PLUS_ORDER
    psb_counts_itself: bool = True
    cyc_counter_bits: int = 14
    cyc_max_bytes: int = 3
    topa_follow: Literal["eager", "lazy"] = "eager"
    held_bytes: int = 0
    topa_cache: Literal["none", "entry", "table"] = "entry"
    pmi_skid: int = 0
    topa_pmi_margin: int = 512
    smrr_policy: Literal["drop", "error"] = "drop"
    error_latency: int = 0
    clear_enables_on_disable: bool = False
    vmentry_disable_fup: bool = False
    failed_vmentry_packets: tuple[str, ...] = ("CFE", "guest_pip", "host_pip")
    vmx_abort_drop: Literal["tip", "none"] = "tip"
    rsm_with_lbr: Literal["suspend", "shutdown"] = "suspend"
    enclave_entry_fup: Literal["always", "tip_only"] = "always"
    senter_drop: Literal["drop", "keep"] = "drop"
    acm_timing_packets: bool = True
    deferred_tips: int = 0
    buffer_bytes: int = 0
    drain_bytes: int = 1
    drain_cycles: int = 1
    ovf_resolve: Literal["level", "explicit"] = "level"
    ovf_resolve_level: int = 0
    ovf_psb: Literal["changed", "always", "never"] = "changed"
    tracestop_in_ovf: Literal["delayed", "dropped"] = "delayed"
    pad_align: int = 1
    psb_guard_pad: bool = False
    pebs_block_order: tuple[int, ...] = PEBS_BLOCK_ORDER
    power_min_cstate: Literal["C0.2", "C1"] = "C0.2"
    deepest_cstate: int = 14
    tsc_on_frequency_change: bool = False
    evd_order: Literal["qr", "rq"] = "qr"
    cfe_pf_0to1: Literal["emit", "none"] = "emit"
    cfe_vmexit_0to1: Literal["emit", "none"] = "emit"
    modeexec_branch_nobranchen: Literal["fup_target", "omit"] = "fup_target"
    uintr_literal: Literal["full", "table"] = "full"

    def __post_init__(self) -> None:
        _one_of("tnt_form", self.tnt_form, TNT_CAPACITY)
        _one_of("ip_compression", self.ip_compression, IP_BYTES)
        _one_of("tracestop_pgd_ip", self.tracestop_pgd_ip, ("target", "suppressed"))
        _one_of("psb_on_enable_order", self.psb_on_enable_order, ("before_pge", "after_pge"))
        _one_of("topa_follow", self.topa_follow, ("eager", "lazy"))
        _one_of("filter_sequential", self.filter_sequential, ("never", "at_boundary"))
        _one_of("topa_cache", self.topa_cache, ("none", "entry", "table"))
        for name in self.psb_extra:
            _one_of("psb_extra", name, PSB_EVENTS)
        _between("tnt_flush_cycles", self.tnt_flush_cycles, 0, 1 << 32)
        _between("held_bytes", self.held_bytes, 0, 1 << 16)
        _between("pmi_skid", self.pmi_skid, 0, 1 << 32)
        _between("error_latency", self.error_latency, 0, 1 << 32)
        _between("pad_align", self.pad_align, 1, 4096)
        _one_of("smrr_policy", self.smrr_policy, ("drop", "error"))
        _one_of("vmx_abort_drop", self.vmx_abort_drop, ("tip", "none"))
        _one_of("rsm_with_lbr", self.rsm_with_lbr, ("suspend", "shutdown"))
        _one_of("enclave_entry_fup", self.enclave_entry_fup, ("always", "tip_only"))
        _one_of("senter_drop", self.senter_drop, ("drop", "keep"))
        for name in self.failed_vmentry_packets:
            _one_of("failed_vmentry_packets", name, FAILED_ENTRY_PACKETS)
        _between("deferred_tips", self.deferred_tips, 0, 64)
        if self.buffer_bytes:
            _between("buffer_bytes", self.buffer_bytes, 256, 1 << 32)
        _between("drain_bytes", self.drain_bytes, 1, 1 << 32)
        _between("drain_cycles", self.drain_cycles, 1, 1 << 32)
        _between("ovf_resolve_level", self.ovf_resolve_level, 0, self.buffer_bytes // 2)
        _one_of("ovf_resolve", self.ovf_resolve, ("level", "explicit"))
        _one_of("ovf_psb", self.ovf_psb, ("changed", "always", "never"))
        _one_of("tracestop_in_ovf", self.tracestop_in_ovf, ("delayed", "dropped"))
        if sorted(self.pebs_block_order) != sorted(PEBS_BLOCK_ORDER):
            raise UsageError("pebs_block_order has each type of PEBS_BLOCK_ORDER once")
        _one_of("power_min_cstate", self.power_min_cstate, ("C0.2", "C1"))
        _between("deepest_cstate", self.deepest_cstate, 0, 14)
        _one_of("evd_order", self.evd_order, ("qr", "rq"))
        _one_of("uintr_literal", self.uintr_literal, ("full", "table"))
        _one_of("cfe_pf_0to1", self.cfe_pf_0to1, ("emit", "none"))
        _one_of("cfe_vmexit_0to1", self.cfe_vmexit_0to1, ("emit", "none"))
        _one_of(
            "modeexec_branch_nobranchen", self.modeexec_branch_nobranchen, ("fup_target", "omit")
        )
        _between("topa_pmi_margin", self.topa_pmi_margin, 0, 4096)
        _between("tnt_flush", self.tnt_flush, 0, TNT_CAPACITY[self.tnt_form])
        _between("ret_compression_depth", self.ret_compression_depth, 0, 64)
        _between("psb_delay", self.psb_delay, 0, 1 << 32)
        _between("cyc_counter_bits", self.cyc_counter_bits, 12, 64)
        _between("cyc_max_bytes", self.cyc_max_bytes, 2, 9)
        if sorted(set(self.psb_plus_order) | {"VMCS"}) != sorted((*PSB_PLUS_ORDER, "VMCS")) or (
            len(self.psb_plus_order) != len(set(self.psb_plus_order))
        ):
            raise UsageError(f"psb_plus_order has each of {', '.join(PSB_PLUS_ORDER)} once")
        if self.cyc_counter_bits > self.cyc_bits:
            raise UsageError(
                f"a CYC of {self.cyc_max_bytes} bytes holds {self.cyc_bits} bits, "
                f"the cycle counter has {self.cyc_counter_bits}"
            )

    @property
    def psb_plus_places(self) -> dict[str, float]:
        """Where each packet of PSB+ stands among the others."""
        places: dict[str, float] = {name: n for n, name in enumerate(self.psb_plus_order)}
        places.setdefault("VMCS", places["PIP"] + 0.5)
        return places

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
