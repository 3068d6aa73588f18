"""Choices that the Intel SDM leaves to the processor, as parameters of the model: one table.

The docstring of `Parameters`, its errors and docs/reference/parameters.md (by `page`) come from it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from textwrap import wrap
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from rtit.errors import UsageError

# No `from __future__ import annotations`: the annotations list the values of parameters.

T = TypeVar("T")


class AllowedValues:
    """The values that a parameter can have. `words`: as texts name them."""

    words = ""

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError, with the `name` of the parameter, for a value that is not of these."""
        raise NotImplementedError


class _ChoiceOfNames(AllowedValues):
    """One of some names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.words = ", ".join(names)

    def check(self, name: str, value: Any) -> None:
        if value not in self.names:
            raise UsageError(f"{name} is one of {self.words}, not {value!r}")


class _BooleanFlag(AllowedValues):
    """True or False."""

    words = "True, False"

    def check(self, name: str, value: Any) -> None:
        if value not in (True, False):
            raise UsageError(f"{name} is True or False, not {value!r}")


class _IntegerRange(AllowedValues):
    """A number from `low` to `high`, or 0 if `or_zero`."""

    def __init__(self, low: int, high: int, *, or_zero: bool = False) -> None:
        self.low, self.high, self.or_zero = low, high, or_zero
        self.words = f"{'0, ' if or_zero else ''}{low} to {_format_number(high)}"

    def check(self, name: str, value: Any) -> None:
        if not self.low <= value <= self.high and not (self.or_zero and value == 0):
            zero = " or is 0" if self.or_zero else ""
            raise UsageError(f"{name} lies between {self.low} and {self.high}{zero}, not {value}")


class _SubsetOf(AllowedValues):
    """Some of the names, or none."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.each = _ChoiceOfNames(names)
        self.words = f"any of {self.each.words}"

    def check(self, name: str, value: Any) -> None:
        for each in value:
            self.each.check(name, each)


class _PermutationOf(AllowedValues):
    """All of the items, each once; the `optional` one may be missing."""

    def __init__(
        self, items: tuple[str, ...] | tuple[int, ...], *, optional: str | None = None
    ) -> None:
        self.items, self.optional = items, optional
        more = f", and optionally {optional}" if optional else ""
        self.words = f"each of {_format_items(items)} once{more}"

    def check(self, name: str, value: Any) -> None:
        needed = [item for item in value if item != self.optional]
        if sorted(needed) != sorted(self.items) or len(value) - len(needed) > 1:
            raise UsageError(f"{name} has {self.words}, not {_format_items(value)}")


class ParameterRow(NamedTuple):
    """A parameter: its values and default, what the chapter leaves open, and the section that does.

    `group` is the heading under which it stands.
    """

    name: str
    group: str
    values: AllowedValues
    default: Any
    section: str
    reason: str


class ParameterGroup:
    """Declares the parameters of one heading, as defaults of the fields of a dataclass."""

    def __init__(self, title: str) -> None:
        self.title = title

    def __call__(
        self, default: T, section: str, reason: str, values: AllowedValues | None = None
    ) -> T:
        """Return a field. An annotation with Literal or bool implies its `values`."""
        about = {"group": self.title, "section": section, "reason": reason, "values": values}
        declared: T = field(default=default, metadata=about)
        return declared


def allowed_by_annotation(annotation: Any) -> AllowedValues:
    """Return the values that an annotation allows. Raises TypeError for other annotations."""
    if annotation is bool:
        return _BooleanFlag()
    if get_origin(annotation) is Literal:
        return _ChoiceOfNames(get_args(annotation))
    raise TypeError(f"{annotation} does not list its values")


def format_default(value: Any) -> str:
    """Return a default value as text."""
    return (_format_items(value) or "none") if isinstance(value, tuple) else str(value)


def format_docstring(rows: Iterable[ParameterRow]) -> str:
    """Return the rows as part of a docstring: a line each, with the reason below it."""
    lines = []
    for row in rows:
        lines.append(f"    {row.name}: {row.values.words}; default {format_default(row.default)};")
        lines[-1] += f" {row.section}"
        lines += wrap(row.reason, 92, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join([*lines, ""])


def _format_items(items: Iterable[Any]) -> str:
    return ", ".join(f"{item:#x}" if isinstance(item, int) else str(item) for item in items)


def _format_number(number: int) -> str:
    """Return large powers of two as 2^n."""
    exact = number >= 1 << 16 and not number & (number - 1)
    return f"2^{number.bit_length() - 1}" if exact else str(number)


# No `from __future__ import annotations`: the annotations say what values there are.


PSB_PLUS_ORDER = ("TSC", "PIP", "CBR", "MODE.TSX", "MODE.Exec", "FUP")
"""The packets of PSB+; TMA follows its TSC at once and has no place of its own."""

FAILED_ENTRY_PACKETS = ("CFE", "guest_pip", "trace_en", "host_pip")
"""What may come at a late failure of VM entry, in this order (Table 33-54)."""

PEBS_BLOCK_ORDER = (0x04, 0x05, 0x01, 0x10, 0x08, 0x09, 0x0A)
"""BBP types: basic, memory, general-purpose registers, XMM, LBR (Table 33-45)."""

PSB_EVENTS = ("enable", "transfer", "mov_cr3", "wake", "frequency")
"""What may insert a PSB+ besides the byte count: see Parameters.psb_extra."""

TNT_CAPACITY = {"short": 6, "long": 47, "mixed": 47}
"""Results that a TNT holds, by Parameters.tnt_form."""

_MAX = 1 << 32
"""No number needs to be larger."""

_packets = ParameterGroup("Packets")
_psb = ParameterGroup("PSB")
_cyc = ParameterGroup("CYC")
_output = ParameterGroup("Output")
_status = ParameterGroup("STATUS")
_system = ParameterGroup("VMX, SMM, enclaves, authenticated code")
_deferred = ParameterGroup("Deferred TIPs")
_overflow = ParameterGroup("Overflow")
_padding = ParameterGroup("Padding and blocks")
_power = ParameterGroup("Power")
_event_trace = ParameterGroup("Event trace")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Choices among the behaviours that the chapter allows. Every one gives a legal trace of the
    same execution. UsageError for a value that is not one of those named.
    """

    tnt_form: Literal["short", "long", "mixed"] = _packets(
        "short",
        "33.4.2.1",
        "With `short`, the trace unit collects up to 6 branch results and sends a short TNT. With "
        "`long`, the trace unit collects up to 47 branch results and sends a long TNT. With "
        "`mixed`, the trace unit collects up to 47 branch results, and sends a short TNT if there "
        "are at most 6 results, else a long TNT.",
    )
    tnt_flush: int = _packets(
        0,
        "33.4.2.1",
        "The trace unit sends a TNT when the TNT has the given number of branch results. With 0, "
        "the trace unit sends a TNT only when the TNT is full, or when another packet must "
        "follow the pending results. The value must not exceed the number of results that "
        "tnt_form allows.",
        _IntegerRange(0, 47),
    )
    tnt_flush_cycles: int = _packets(
        0,
        "33.4.2.1",
        "At each multiple of the given number of core cycles, the trace unit sends a TNT with "
        "the pending branch results. 0 disables these additional TNTs.",
        _IntegerRange(0, _MAX),
    )
    ip_compression: Literal["shortest", "none", "sext48_only", "bdw"] = _packets(
        "shortest",
        "33.4.2.2",
        "With `shortest`, the trace unit selects the shortest encoding of each IP. With `none`, "
        "the trace unit always writes the full IP. With `sext48_only`, the trace unit writes 48 "
        "bits if their sign extension is the IP, and otherwise writes the full IP. With `bdw`, "
        "the trace unit selects the shortest encoding, but never IPBytes 100b.",
    )
    compress_after_psb: bool = _packets(
        True,
        "33.4.2.2",
        "With True, the trace unit compresses the first IP after a PSB, with a LastIP of zero. "
        "With False, the trace unit writes the first IP after a PSB in full.",
    )
    ret_compression_depth: int = _packets(
        64,
        "33.4.2.2",
        "The number of return addresses that the trace unit stores for RET compression.",
        _IntegerRange(0, 64),
    )
    modeexec_suppress: bool = _packets(
        True,
        "33.4.2.8",
        "With True, the trace unit sends no MODE.Exec at TIP.PGE if the last MODE.Exec reported "
        "the same mode.",
    )
    filter_sequential: Literal["never", "at_boundary"] = _packets(
        "never",
        "33.2.5.3",
        "The parameter applies if execution enters a FilterEn range without a branch. With "
        "`never`, tracing begins at the next taken branch or event. With `at_boundary`, tracing "
        "begins immediately, with a TIP.PGE. If execution leaves a FilterEn range without a "
        "branch, tracing always continues up to the next branch or event, because no packet can "
        "report the end of the range.",
    )
    tracestop_pgd_ip: Literal["target", "suppressed"] = _packets(
        "target",
        "33.2.5.3",
        "With `target`, the TIP.PGD before a TraceStop packet contains the branch target. With "
        "`suppressed`, the TIP.PGD before a TraceStop packet contains no IP.",
    )
    tracestop_mov_cr3: Literal["in_range", "entering"] = _packets(
        "in_range",
        "33.2.5.3, 33.4.2.9",
        "With `in_range`, a MOV CR3 in a TraceStop range stops the trace if ContextEn is 1 after "
        "the MOV CR3 (Table 33-28). With `entering`, a MOV CR3 in a TraceStop range stops the "
        "trace only if the MOV CR3 changes ContextEn to 1, because any other MOV CR3 is not a "
        "branch or event.",
    )
    modeexec_interrupt_flag: Literal["event_en", "cpuid"] = _packets(
        "event_en",
        "33.4.2.8",
        "The parameter determines bit 2 of MODE.Exec while EventEn is 0. With `event_en`, the "
        "bit is 0 then. With `cpuid`, bit 2 of MODE.Exec is RFLAGS.IF if CPUID.(14H,0):EBX[7] "
        "is 1, as in Table 33-26. While EventEn is 0, the trace unit sends no packet if only "
        "RFLAGS.IF changes.",
    )
    psb_on_enable_order: Literal["before_pge", "after_pge"] = _psb(
        "before_pge",
        "33.2.8.3",
        "When TraceEn is set, the trace unit sends a PSB+ before TIP.PGE (`before_pge`) or after "
        "TIP.PGE (`after_pge`). A PSB+ before TIP.PGE has no FUP.",
    )
    psb_delay: int = _psb(
        0,
        "33.4.2.17",
        "When the byte count reaches the PSB threshold, the trace unit first writes the given "
        "number of further bytes, and then inserts the PSB.",
        _IntegerRange(0, _MAX),
    )
    psb_extra: tuple[str, ...] = _psb(
        (),
        "33.4.2.17",
        "The trace unit inserts a PSB+ when the byte count reaches the threshold. The trace unit "
        "also inserts a PSB+ at the events that this parameter names, at any byte count: when "
        "software sets TraceEn (`enable`), at far transfers and events (`transfer`), at MOV CR3 "
        "(`mov_cr3`), when the processor wakes from a C-state, TM1, TM2 or STPCLK# (`wake`), and "
        "when the frequency changes (`frequency`).",
        _SubsetOf(PSB_EVENTS),
    )
    psb_plus_order: tuple[str, ...] = _psb(
        PSB_PLUS_ORDER,
        "33.3.7",
        "The order of the packets in a PSB+. The trace unit leaves out packets that do not "
        "apply. If the order does not contain VMCS, VMCS follows PIP.",
        _PermutationOf(PSB_PLUS_ORDER, optional="VMCS"),
    )
    psb_counts_itself: bool = _psb(
        True, "33.2.8.4, 33.4.2.17", "With True PacketByteCnt also counts the bytes of each PSB+."
    )
    cyc_counter_bits: int = _cyc(
        14,
        "33.3.6.1",
        "The width of the cycle counter in bits. The trace unit sends a stand-alone CYC before "
        "the cycle counter wraps. The width must not exceed the number of payload bits of the "
        "longest CYC.",
        _IntegerRange(12, 64),
    )
    cyc_max_bytes: int = _cyc(
        3, "33.4.2.14", "The size of the longest CYC packet in bytes.", _IntegerRange(2, 9)
    )
    topa_follow: Literal["eager", "lazy"] = _output(
        "eager",
        "33.2.7.2",
        "When the last region of a ToPA table is full, the trace unit follows the END entry to "
        "the next table immediately (`eager`), or only when the trace unit writes the next byte "
        "(`lazy`).",
    )
    held_bytes: int = _output(
        0,
        "33.2.7, 33.3.3",
        "The trace unit buffers the newest bytes, up to the given number of bytes. The trace "
        "unit writes buffered bytes to memory when newer bytes follow, or when TraceEn is "
        "cleared. At an operational error or a ToPA STOP, the buffered bytes are lost.",
        _IntegerRange(0, 1 << 16),
    )
    topa_cache: Literal["none", "entry", "table"] = _output(
        "entry",
        "33.2.7.2",
        "With `none`, the trace unit reads a ToPA entry again for each write. With `entry`, the "
        "trace unit reads a ToPA entry once, when the entry becomes current. With `table`, the "
        "trace unit reads a ToPA entry together with all other entries in the same 4 KB of the "
        "table. The trace unit does not see changes that software makes to an entry after the "
        "trace unit has read the entry.",
    )
    pmi_skid: int = _output(
        0,
        "33.2.7.2",
        "When an output region that requests a PMI (INT=1) is full, the trace unit first writes "
        "the given number of further bytes, and then signals the PMI. If another PMI becomes due "
        "before the trace unit signals the first PMI, the trace unit signals only one PMI.",
        _IntegerRange(0, _MAX),
    )
    topa_pmi_margin: int = _output(
        512,
        "33.2.7.2",
        "On a processor with single-entry ToPA, the PMI occurs when the region has the given "
        "number of free bytes.",
        _IntegerRange(0, 4096),
    )
    smrr_policy: Literal["drop", "error"] = _output(
        "drop",
        "33.2.7.4",
        "If an output region is in restricted memory, the trace unit discards the bytes for this "
        "region (`drop`) or reports an operational error (`error`, Table 33-5).",
    )
    error_latency: int = _output(
        0,
        "33.3.2.1",
        "If setting TraceEn causes an error, STATUS.Error becomes 1 after the given number of "
        "core cycles, or when TraceEn is cleared. TriggerEn becomes 0 without delay.",
        _IntegerRange(0, _MAX),
    )
    clear_enables_on_disable: bool = _status(
        False,
        "33.2.8.3",
        "With True, clearing TraceEn also clears ContextEn and FilterEn in IA32_RTIT_STATUS.",
    )
    vmentry_disable_fup: bool = _system(
        False,
        "33.7",
        "With True, the trace unit sends a FUP before the TIP.PGD of a VM entry that ends tracing "
        "(Table 33-56 row 9). The FUP has the IP of the VM entry instruction. A decoder does not "
        "need this FUP, because the decoder can see the VM entry instruction in the code.",
    )
    failed_vmentry_packets: tuple[str, ...] = _system(
        ("CFE", "guest_pip", "host_pip"),
        "33.5.2.5",
        "If a VM entry fails late (Table 33-54), the trace unit can send these packets: CFE with "
        "its FUP (`CFE`), the PIP of the guest (`guest_pip`), TSC, TMA and CBR (`trace_en`), and "
        "the PIP of the host (`host_pip`). The parameter selects the packets that it sends.",
        _SubsetOf(FAILED_ENTRY_PACKETS),
    )
    vmx_abort_drop: Literal["tip", "none"] = _system(
        "tip",
        "33.5.2.6",
        "If a VM exit ends in a VMX abort, the processor loses either the TIP of the VM exit "
        "(`tip`) or nothing (`none`).",
    )
    rsm_with_lbr: Literal["suspend", "shutdown"] = _system(
        "suspend",
        "33.8.1, 33.2.9.3",
        "A processor may be unable to use PT and LBR at the same time. If RSM enables "
        "both PT and LBR, this processor suspends LBR (`suspend`) or shuts down (`shutdown`).",
    )
    debug_enclave: Literal["traced", "opt_in"] = _system(
        "traced",
        "33.2.9.5",
        "The trace unit traces all debug enclaves (`traced`), or only debug enclaves that were "
        "entered with opt-in (`opt_in`, TCS.FLAGS.DBGOPTIN).",
    )
    enclave_entry_fup: Literal["always", "tip_only"] = _system(
        "always",
        "33.2.9.5, 33.7",
        "An enclave entry that ends tracing has a FUP (`always`, Table 33-23) or no FUP "
        "(`tip_only`, Table 33-56 row 6).",
    )
    senter_drop: Literal["drop", "keep"] = _system(
        "drop",
        "33.2.9.6",
        "At GETSEC the trace unit discards the bytes in its internal buffers (`drop`), or writes "
        "these bytes to memory (`keep`). With `drop`, the end of the trace is lost.",
    )
    acm_timing_packets: bool = _system(
        True,
        "33.2.9.6",
        "With True, the trace unit sends TSC, TMA and CBR packets after an authenticated "
        "code module.",
    )
    deferred_tips: int = _deferred(
        0,
        "33.4.2.3",
        "The number of TIPs of indirect JMPs and CALLs that the trace unit may defer until the "
        "previous TNT is full. With CYCEn=1 the trace unit defers no TIP, because the SDM does "
        "not say how to combine deferred TIPs with CYC packets.",
        _IntegerRange(0, 64),
    )
    buffer_bytes: int = _overflow(
        0,
        "33.3.8",
        "The size of the internal buffer in bytes; 0 means unlimited.",
        _IntegerRange(256, _MAX, or_zero=True),
    )
    drain_bytes: int = _overflow(
        1,
        "33.3.8",
        "The number of bytes that leave the internal buffer in each period of drain_cycles core "
        "cycles.",
        _IntegerRange(1, _MAX),
    )
    drain_cycles: int = _overflow(
        1,
        "33.3.8",
        "The length, in core cycles, of the period in which drain_bytes bytes leave the internal "
        "buffer.",
        _IntegerRange(1, _MAX),
    )
    ovf_resolve: Literal["level", "explicit"] = _overflow(
        "level",
        "33.3.8",
        "With `level`, an overflow resolves when the internal buffer has no more than "
        "ovf_resolve_level bytes. With `explicit`, an overflow resolves at the event "
        "`end_overflow`.",
    )
    ovf_resolve_level: int = _overflow(
        0,
        "33.3.8",
        "An overflow resolves when the internal buffer has no more than the given number of "
        "bytes. The number must be at most half of buffer_bytes.",
        _IntegerRange(0, _MAX // 2),
    )
    ovf_cyc: Literal["threshold", "always"] = _overflow(
        "threshold",
        "33.3.6.3, 33.3.8.2",
        "With `threshold`, a CYC precedes OVF only if CycThresh cycles have passed since the last "
        "CYC. With `always`, a CYC always precedes OVF. The parameter does not change the rule for "
        "CYC packets before other packets.",
    )
    ovf_psb: Literal["changed", "always", "never"] = _overflow(
        "changed",
        "33.4.1",
        "The parameter determines whether a PSB+ follows OVF and its FUP (Table 33-14). With "
        "`changed`, the trace unit sends a PSB+ if the overflow lost a packet that reports a "
        "change of code width, CR3, transaction state or VMCS. With `always`, a PSB+ follows each "
        "overflow, and with `never` no PSB+ follows an overflow.",
    )
    tracestop_in_ovf: Literal["delayed", "dropped"] = _overflow(
        "delayed",
        "33.2.5.3, 33.3.8.1",
        "If tracing stops during an overflow, the TraceStop packet follows OVF (`delayed`) or "
        "is not sent (`dropped`).",
    )
    pad_align: int = _padding(
        1,
        "33.4.2.20",
        "After the packets of each event, the trace unit writes PADs up to the next multiple of "
        "the given number of bytes. With 1, the trace unit writes no PADs.",
        _IntegerRange(1, 4096),
    )
    psb_guard_pad: bool = _padding(
        False,
        "33.4.2.20",
        "With True, the trace unit writes a PAD before each PSB, so that the end of the previous "
        "packet does not look like the beginning of the PSB.",
    )
    pebs_block_order: tuple[int, ...] = _padding(
        PEBS_BLOCK_ORDER,
        "33.4.2.26",
        "The order of the BBP types in a PEBS record.",
        _PermutationOf(PEBS_BLOCK_ORDER),
    )
    power_min_cstate: Literal["C0.2", "C1"] = _power(
        "C0.2", "33.4.2.23", "The shallowest C-state that power packets report."
    )
    deepest_cstate: int = _power(
        14,
        "33.4.2.24",
        "The MWAIT encoding of the deepest C-state that the core supports, from 0 (C1) to 14. If "
        "software requests a deeper C-state, the core enters the deepest supported C-state.",
        _IntegerRange(0, 14),
    )
    tsc_on_frequency_change: bool = _power(
        False,
        "33.4.2.11",
        "With True, the trace unit sends TSC and TMA also at a frequency change that does not "
        "stop a clock.",
    )
    evd_order: Literal["qr", "rq"] = _event_trace(
        "qr",
        "33.5.2.1, 33.7",
        "A VM exit has two EVD packets: VMXQ comes before VMXR (`qr`, Table 33-59) or after VMXR "
        "(`rq`, Table 33-53).",
    )
    cfe_pf_0to1: Literal["emit", "none"] = _event_trace(
        "emit",
        "33.4.2.29, 33.7",
        "If a page fault changes ContextEn to 1, the trace unit sends a CFE (`emit`) or no CFE "
        "(`none`). Table 33-49 and Table 33-59 contradict each other.",
    )
    cfe_vmexit_0to1: Literal["emit", "none"] = _event_trace(
        "emit",
        "33.4.2.29, 33.7",
        "If a VM exit changes ContextEn to 1, the trace unit sends a CFE (`emit`) or no CFE "
        "(`none`). Table 33-49 and Table 33-59 contradict each other.",
    )
    modeexec_branch_nobranchen: Literal["fup_target", "omit"] = _event_trace(
        "fup_target",
        "33.4.2.8",
        "With BranchEn=0, a branch that changes RFLAGS.IF has no packet to which MODE.Exec can "
        "bind. With `fup_target`, a FUP with the target follows MODE.Exec; with `omit` the trace "
        "unit sends neither packet.",
    )
    uintr_literal: Literal["full", "table"] = _event_trace(
        "full",
        "33.7",
        "With `full`, the packets of user interrupts and UIRET contain the branch targets. With "
        "`table`, the trace unit sends only the packets in rows 26 and 27 of Table 33-55, and no "
        "decoder can follow the trace.",
    )

    def __post_init__(self) -> None:
        for row in PARAMETER_TABLE:
            value = getattr(self, row.name)
            if value is not row.default:
                row.values.check(row.name, value)
        _IntegerRange(0, TNT_CAPACITY[self.tnt_form]).check("tnt_flush", self.tnt_flush)
        _IntegerRange(0, self.buffer_bytes // 2).check("ovf_resolve_level", self.ovf_resolve_level)
        if self.cyc_counter_bits > self.cyc_bits:
            raise UsageError(
                f"a CYC of {self.cyc_max_bytes} bytes holds {self.cyc_bits} bits, "
                f"the cycle counter has {self.cyc_counter_bits}"
            )

    @property
    def psb_plus_positions(self) -> dict[str, float]:
        """Where each packet of PSB+ stands among the others."""
        positions: dict[str, float] = {name: n for n, name in enumerate(self.psb_plus_order)}
        positions.setdefault("VMCS", positions["PIP"] + 0.5)
        return positions

    @property
    def cyc_bits(self) -> int:
        """Bits of the longest CYC payload (Table 33-33)."""
        return 5 + 7 * (self.cyc_max_bytes - 1)

    @property
    def tnt_results(self) -> int:
        """Results after which a TNT is sent."""
        return self.tnt_flush or TNT_CAPACITY[self.tnt_form]


PARAMETER_TABLE = tuple(
    ParameterRow(
        each.name,
        each.metadata["group"],
        each.metadata["values"] or allowed_by_annotation(each.type),
        each.default,
        each.metadata["section"],
        each.metadata["reason"],
    )
    for each in fields(Parameters)
)
"""Every parameter, as `Parameters` declares it."""

Parameters.__doc__ = (
    f"{(Parameters.__doc__ or '').rstrip()}\n\n{format_docstring(PARAMETER_TABLE)}    "
)
